#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradrail/clock.h"

namespace gradrail::bench {

/// Members of a run without a model: each joins all servers and pings them. One process has thousands of them.
/// Threads  The owner's; pings run in threads of gRPC and one timer thread.
class StubMembers {
 public:
  struct Options {
    std::vector<std::string> servers;  ///< "host:port", one shard each
    uint32_t count = 1;
    uint32_t at_once = 64;  ///< joins under way at the same time
  };
  explicit StubMembers(Options options);
  /// Ends all connections.
  ~StubMembers();

  /// Joins all members at all servers and starts their heartbeats.
  /// Errors  The first failure, with its member and server.
  absl::Status join(TimePoint deadline);

  uint64_t answered_pings() const { return answered_pings_; }
  uint32_t lost_heartbeats() const { return lost_heartbeats_; }
  /// The longest interval that a server has set.
  Duration interval() const { return std::chrono::microseconds(interval_us_); }

 private:
  class Heartbeat;
  class Timer;
  absl::Status join_one(uint32_t member, TimePoint deadline);

  const Options options_;
  std::atomic<uint64_t> answered_pings_ = 0;
  std::atomic<uint32_t> lost_heartbeats_ = 0;
  std::atomic<uint32_t> interval_us_ = 0;
  std::unique_ptr<Timer> timer_;
  std::vector<std::unique_ptr<Heartbeat>> heartbeats_;  ///< indexed by member, then by server
};

}  // namespace gradrail::bench
