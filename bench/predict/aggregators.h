#pragma once

#include <vector>

#include "bench/predict/network/network.h"
#include "bench/predict/plan.h"
#include "bench/predict/server_threads.h"

namespace gradrail::bench::predict {

/// The aggregators. Each one sums the gradients of a group of workers, bucket by bucket, and pushes the sum to the
/// shard. It sends the answer to each worker of the group. An aggregator has one thread, on a host of its own.
class Aggregators {
 public:
  Aggregators(const Description& description, const Plan& plan, Network& network);

  /// The push of a worker has arrived. Releases the message.
  void on_push(uint32_t message, Time now);
  /// The answer of a shard has arrived. Releases the message.
  void on_answer(uint32_t message, Time now);

  void begin_measurement(Time now) { threads_.begin_measurement(now); }
  double cpu_share(Time now) const { return threads_.cpu_share(now); }
  double memory_share(Time now) const { return threads_.memory_share(now); }

 private:
  uint32_t first_worker(uint32_t group) const { return group * description_.cluster.group_size(); }
  uint32_t end_worker(uint32_t group) const;
  /// Sends a message that the thread of `group` has ready. Its trace ends at `now`.
  void send(uint32_t group, Message message, Time now);

  const Description& description_;
  const Plan& plan_;
  Network& network_;
  ServerThreads threads_;
  /// [groups, buckets of the plan]: pushes of the present step. A worker pushes a bucket again after its answer only.
  std::vector<uint32_t> pushes_;
};

}  // namespace gradrail::bench::predict
