#include "bench/predict/aggregators.h"

#include <algorithm>

#include "base/check.h"

namespace gradrail::bench::predict {

Aggregators::Aggregators(const Description& description, const Plan& plan, Network& network)
    : description_(description),
      plan_(plan),
      network_(network),
      threads_(description.costs, description.cluster.group_count(), /*per_host=*/1),
      pushes_(description.cluster.group_count() * plan.buckets.size()) {}

uint32_t Aggregators::end_worker(uint32_t group) const {
  return std::min(first_worker(group + 1), description_.cluster.workers);
}

void Aggregators::on_push(uint32_t index, Time now) {
  const Message message = network_.message(index);
  network_.release(index);
  const uint32_t group = message.worker / description_.cluster.group_size();
  threads_.receive(group, message.bytes, now);
  const uint32_t bucket_index = plan_.index_of(message.shard, message.bucket);
  const uint32_t members = end_worker(group) - first_worker(group);
  uint32_t& pushes = pushes_[group * plan_.buckets.size() + bucket_index];
  GRADRAIL_CHECK(pushes < members);
  if (++pushes < members) return;
  pushes = 0;
  const Plan::Bucket& bucket = plan_.buckets[bucket_index];
  const Costs& costs = description_.costs;
  // Each gradient is read, and the sum is written.
  threads_.work(group, costs.apply_us * 1e3 + members * bucket.fp32_bytes * costs.gradient_ns_per_byte,
                members * bucket.push_bytes + bucket.sum_bytes);
  send(group,
       {.leg = Leg::upper,
        .worker = group,
        .shard = message.shard,
        .bucket = message.bucket,
        .kind = message.kind,
        .step = message.step,
        .version = message.version,
        .bytes = bucket.sum_bytes,
        .trace = message.trace},
       now);
}

void Aggregators::on_answer(uint32_t index, Time now) {
  const Message message = network_.message(index);
  network_.release(index);
  const uint32_t group = message.worker;
  threads_.receive(group, message.bytes, now);
  for (uint32_t worker = first_worker(group); worker < end_worker(group); ++worker) {
    send(group,
         {.leg = Leg::lower,
          .worker = worker,
          .shard = message.shard,
          .bucket = message.bucket,
          .is_answer = true,
          .step = message.step,
          .version = message.version,
          .bytes = message.bytes,
          .trace = message.trace},
         now);
  }
}

void Aggregators::send(uint32_t group, Message message, Time now) {
  const ServerThreads::Sending sending = threads_.send(group, message.bytes);
  message.not_before = sending.end;
  message.trace.add(Cause::aggregator, sending.departs_at - now);
  network_.send(message, sending.departs_at);
}

}  // namespace gradrail::bench::predict
