#pragma once

#include <cstdint>
#include <vector>

#include "bench/predict/description.h"
#include "bench/predict/network/events.h"

namespace gradrail::bench::predict {

/// Threads of shards, and the memory of their hosts. A thread does its work one after the other: each
/// call begins when the one before it on this thread has ended.
/// Units  bytes of the message, of the memory; nanoseconds.
class ServerThreads {
 public:
  ServerThreads(const Costs& costs, uint32_t count, uint32_t per_host);

  Time free_at(uint32_t thread) const { return free_at_[thread]; }
  /// The next work of the thread begins now or later.
  void begin(uint32_t thread, Time now);
  /// A message has arrived.
  void receive(uint32_t thread, double bytes, Time now);
  /// `memory_bytes` cross the memory meanwhile.
  void work(uint32_t thread, Time duration, double memory_bytes);
  struct Sending {
    Time departs_at = 0;  ///< the first bytes enter the connection
    Time end = 0;
  };
  Sending send(uint32_t thread, double bytes);

  void begin_measurement(Time now);
  /// Shares of the measured time, of all threads and of all hosts together.
  double cpu_share(Time now) const;
  double memory_share(Time now) const;

 private:
  /// The memory of the host carries these bytes as soon as it can. Returns the end.
  Time use_memory(uint32_t thread, double bytes);

  const Costs& costs_;
  uint32_t per_host_;
  std::vector<Time> free_at_;
  std::vector<Time> memory_free_at_;  ///< per host
  Time now_ = 0;                      ///< of the event
  Time measured_from_ = 0;
  Time busy_ = 0, memory_busy_ = 0;  ///< of all threads, of all hosts
};

}  // namespace gradrail::bench::predict
