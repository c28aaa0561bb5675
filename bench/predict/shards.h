#pragma once

#include <memory>
#include <vector>

#include "bench/predict/network/network.h"
#include "bench/predict/plan.h"
#include "bench/predict/server_threads.h"
#include "ps/shard/shard_protocol.h"

namespace gradrail::bench::predict {

/// The shards: their protocol, which is the shipped one, and the times of their threads.
class Shards {
 public:
  Shards(const Description& description, const Plan& plan, EventQueue& events, Network& network);

  /// A push has arrived. Releases the message.
  void on_arrival(uint32_t message, Time now);
  void on_window(uint32_t window, Time now);

  void begin_measurement(Time now);
  double cpu_share(Time now) const { return threads_.cpu_share(now); }
  double memory_share(Time now) const { return threads_.memory_share(now); }
  /// Updates since the begin of the measurement, of single buckets.
  double updates() const { return updates_ - updates_before_; }
  double dropped_share() const;

 private:
  struct Window {
    uint32_t shard = 0, bucket = 0;
    uint64_t step = 0;
    Trace trace{};  ///< of the push that began it
    Time begun_at = 0;
  };

  /// Carries out `actions_`.
  void perform(uint32_t shard);
  /// The answers that follow are due to this push, which has arrived.
  void follow(const Trace& trace, Time arrived_at) {
    trace_ = trace;
    arrived_at_ = arrived_at;
  }
  void apply(uint32_t shard, const ps::Action& action);
  void answer(uint32_t shard, const ps::Action& action);

  const Description& description_;
  const Costs costs_;  ///< a message takes the time of those of a whole group
  const Plan& plan_;
  EventQueue& events_;
  Network& network_;
  ServerThreads threads_;
  std::vector<std::unique_ptr<ps::ShardProtocol>> protocols_;
  std::vector<Window> windows_;
  ps::Actions actions_;  ///< reused
  Trace trace_;          ///< of the push that the shard processes
  Time arrived_at_ = 0;
  double updates_ = 0, updates_before_ = 0;
  uint64_t answers_ = 0, dropped_ = 0;
};

}  // namespace gradrail::bench::predict
