#include "bench/predict/shards.h"

#include "base/check.h"

namespace gradrail::bench::predict {
namespace {

/// One incarnation of each worker.
constexpr uint64_t kIncarnation = 1;

/// Each message stands for those of `workers_each` workers.
Costs server_costs(const Description& description) {
  Costs costs = description.costs;
  costs.message_us *= description.workers_each;
  costs.send_ns_per_byte *= description.workers_each;
  costs.receive_ns_per_byte *= description.workers_each;
  costs.gradient_ns_per_byte *= description.workers_each;
  costs.memory_gb_per_s /= description.workers_each;
  return costs;
}

}  // namespace

Shards::Shards(const Description& description, const Plan& plan, EventQueue& events, Network& network)
    : description_(description),
      costs_(server_costs(description)),
      plan_(plan),
      events_(events),
      network_(network),
      threads_(costs_, description.cluster.shard_count(), description.cluster.shards) {
  Mode mode = description.load.mode;
  mode.worker_count = description.cluster.workers;
  for (uint32_t i = 0; i < description.cluster.shard_count(); ++i) {
    auto& protocol = *protocols_.emplace_back(
        std::make_unique<ps::ShardProtocol>(mode, plan.bucket_count(i), /*initialised=*/true, 0));
    for (uint32_t worker = 0; worker < mode.worker_count; ++worker) protocol.add_worker(worker, kIncarnation);
  }
}

void Shards::on_arrival(uint32_t index, Time now) {
  const Message message = network_.message(index);
  network_.release(index);
  threads_.receive(message.shard, message.bytes, now);
  follow(message.trace, now);
  actions_.clear();
  protocols_[message.shard]->on_arrival({.worker = message.worker,
                                         .incarnation = kIncarnation,
                                         .kind = message.kind,
                                         .bucket = message.bucket,
                                         .step = message.step,
                                         .base_version = message.version},
                                        actions_);
  perform(message.shard);
}

void Shards::on_window(uint32_t index, Time now) {
  Window& window = windows_[index];
  window.trace.add(Cause::latency, now - window.begun_at);
  follow(window.trace, now);
  actions_.clear();
  protocols_[window.shard]->on_window_end(window.bucket, window.step, actions_);
  threads_.begin(window.shard, now);
  perform(window.shard);
}

void Shards::perform(uint32_t shard) {
  for (const ps::Action& action : actions_) {
    switch (action.kind) {
      case ps::Action::Kind::apply:
        apply(shard, action);
        break;
      case ps::Action::Kind::answer:
        answer(shard, action);
        break;
      case ps::Action::Kind::begin_window: {
        const Time at = threads_.free_at(shard);
        windows_.push_back({shard, action.bucket, action.step, trace_, at});
        windows_.back().trace.add(Cause::shard, at - arrived_at_);
        events_.insert(at + description_.load.mode.grace.seconds * 1e9, Event::Kind::window,
                       static_cast<uint32_t>(windows_.size() - 1));
        break;
      }
      case ps::Action::Kind::initialise:
      case ps::Action::Kind::refuse:
        // Workers of the model follow the protocol, and buckets are initialized from the start.
        GRADRAIL_CHECK(action.reason.empty());
        GRADRAIL_CHECK(action.kind != ps::Action::Kind::initialise);
        break;
    }
  }
}

void Shards::apply(uint32_t shard, const ps::Action& action) {
  if (action.contributors.empty()) return;
  const Plan::Bucket& bucket = plan_.buckets[plan_.index_of(shard, action.bucket)];
  const auto gradients = static_cast<double>(action.contributors.size());
  // A sum is applied once for all workers, else each push of a group is applied.
  const double applies = description_.load.mode.sums() ? 1 : description_.workers_each;
  updates_ += applies;
  // Each gradient is read; parameters are read and written.
  threads_.work(shard,
                applies * costs_.apply_us * 1e3 +
                    bucket.fp32_bytes * (applies * costs_.apply_ns_per_byte + gradients * costs_.gradient_ns_per_byte),
                gradients * bucket.push_bytes + 2 * bucket.fp32_bytes * applies / description_.workers_each);
}

void Shards::answer(uint32_t shard, const ps::Action& action) {
  const Plan::Bucket& bucket = plan_.buckets[plan_.index_of(shard, action.bucket)];
  ++answers_;
  if (action.dropped) ++dropped_;
  const ServerThreads::Sending sending = threads_.send(shard, bucket.return_bytes);
  Trace trace = trace_;
  trace.add(Cause::shard, sending.departs_at - arrived_at_);
  network_.send({.worker = action.worker,
                 .shard = shard,
                 .bucket = action.bucket,
                 .is_answer = true,
                 .is_dropped = action.dropped,
                 .step = action.step,
                 .version = action.version,
                 .bytes = bucket.return_bytes,
                 .not_before = sending.end,
                 .trace = trace},
                sending.departs_at);
}

void Shards::begin_measurement(Time now) {
  threads_.begin_measurement(now);
  updates_before_ = updates_;
  answers_ = dropped_ = 0;
}

double Shards::dropped_share() const {
  return answers_ > 0 ? static_cast<double>(dropped_) / static_cast<double>(answers_) : 0.0;
}

}  // namespace gradrail::bench::predict
