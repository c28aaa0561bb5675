#include "bench/predict/shards.h"

#include <algorithm>

#include "base/check.h"

namespace gradrail::bench::predict {
namespace {

/// One incarnation of each worker.
constexpr uint64_t kIncarnation = 1;

}  // namespace

Shards::Shards(const Description& description, const Plan& plan, EventQueue& events, Network& network)
    : description_(description), plan_(plan), events_(events), network_(network) {
  ps::Mode mode = description.load.mode;
  mode.worker_count = description.cluster.workers;
  for (uint32_t i = 0; i < description.cluster.shard_count(); ++i) {
    Shard& shard = shards_.emplace_back();
    shard.protocol = std::make_unique<ps::ShardProtocol>(mode, plan.bucket_count(i), /*initialised=*/true, 0);
    for (uint32_t worker = 0; worker < mode.worker_count; ++worker) shard.protocol->add_worker(worker, kIncarnation);
  }
  memory_free_at_.resize(description.cluster.ps_hosts());
}

Time Shards::use_memory(uint32_t shard, double bytes) {
  const Cluster& cluster = description_.cluster;
  Time& free_at = memory_free_at_[shard / cluster.shards / cluster.ps_per_host];
  const Time duration = bytes / description_.costs.memory_gb_per_s;
  memory_busy_ += duration;
  // In the order of events: a thread that is busy asks later, and must not delay the others of its host until then.
  free_at = std::max(free_at, now_) + duration;
  return free_at;
}

void Shards::on_arrival(uint32_t index, Time now) {
  now_ = now;
  const Costs& costs = description_.costs;
  const Message message = network_.message(index);
  network_.release(index);
  Shard& shard = shards_[message.shard];
  const Time work = message.bytes * costs.receive_ns_per_byte;
  const Time last_piece = std::min(message.bytes, kPieceBytes) * costs.receive_ns_per_byte;
  const Time wake = shard.free_at <= now ? costs.wake_us * 1e3 : 0;
  // The thread takes bytes while the others arrive, if it has time.
  Time at = std::max(shard.free_at + work, now + last_piece) + wake + costs.message_us * 1e3;
  busy_ += work + wake + costs.message_us * 1e3;
  // From the NIC to memory; TCP copies them once more.
  at = std::max(at, use_memory(message.shard, message.bytes * (costs.receive_ns_per_byte > 0 ? 3 : 1)));
  follow(message.trace, now);
  actions_.clear();
  shard.protocol->on_arrival({.worker = message.worker,
                              .incarnation = kIncarnation,
                              .kind = message.kind,
                              .bucket = message.bucket,
                              .step = message.step,
                              .base_version = message.version},
                             actions_);
  shard.free_at = perform(message.shard, at);
}

void Shards::on_window(uint32_t index, Time now) {
  now_ = now;
  Window& window = windows_[index];
  Shard& shard = shards_[window.shard];
  window.trace.add(Cause::latency, now - window.begun_at);
  follow(window.trace, now);
  actions_.clear();
  shard.protocol->on_window_end(window.bucket, window.step, actions_);
  shard.free_at = perform(window.shard, std::max(now, shard.free_at));
}

Time Shards::perform(uint32_t shard, Time at) {
  for (const ps::Action& action : actions_) {
    switch (action.kind) {
      case ps::Action::Kind::apply:
        at = apply(shard, action, at);
        break;
      case ps::Action::Kind::answer:
        at = answer(shard, action, at);
        break;
      case ps::Action::Kind::begin_window:
        windows_.push_back({shard, action.bucket, action.step, trace_, at});
        windows_.back().trace.add(Cause::shard, at - arrived_at_);
        events_.insert(at + description_.load.mode.grace.seconds * 1e9, Event::Kind::window,
                       static_cast<uint32_t>(windows_.size() - 1));
        break;
      case ps::Action::Kind::initialise:
      case ps::Action::Kind::refuse:
        // Workers of the model follow the protocol, and buckets are initialized from the start.
        GRADRAIL_CHECK(action.reason.empty());
        GRADRAIL_CHECK(action.kind != ps::Action::Kind::initialise);
        break;
    }
  }
  return at;
}

Time Shards::apply(uint32_t shard, const ps::Action& action, Time begin) {
  if (action.contributors.empty()) return begin;
  const Costs& costs = description_.costs;
  const Plan::Bucket& bucket = plan_.buckets[plan_.first_bucket[shard] + action.bucket];
  const auto gradients = static_cast<double>(action.contributors.size());
  const Time work =
      costs.apply_us * 1e3 + bucket.fp32_bytes * (costs.apply_ns_per_byte + gradients * costs.gradient_ns_per_byte);
  ++updates_;
  // Each gradient is read; parameters are read and written.
  const Time memory = use_memory(shard, gradients * bucket.push_bytes + 2 * bucket.fp32_bytes);
  busy_ += work;
  const Time end = std::max(begin + work, memory);
  return end;
}

Time Shards::answer(uint32_t shard, const ps::Action& action, Time begin) {
  const Costs& costs = description_.costs;
  const Plan::Bucket& bucket = plan_.buckets[plan_.first_bucket[shard] + action.bucket];
  ++answers_;
  if (action.dropped) ++dropped_;
  const Time first_piece = costs.message_us * 1e3 + std::min(bucket.return_bytes, kPieceBytes) * costs.send_ns_per_byte;
  const Time end = begin + costs.message_us * 1e3 + bucket.return_bytes * costs.send_ns_per_byte;
  busy_ += end - begin;
  use_memory(shard, bucket.return_bytes * (costs.send_ns_per_byte > 0 ? 3 : 1));
  const uint32_t index = network_.allocate();
  network_.message(index) = {.worker = action.worker,
                             .shard = shard,
                             .bucket = action.bucket,
                             .is_answer = true,
                             .is_dropped = action.dropped,
                             .step = action.step,
                             .version = action.version,
                             .bytes = bucket.return_bytes,
                             .not_before = end,
                             .trace = trace_};
  network_.message(index).trace.add(Cause::shard, begin + first_piece - arrived_at_);
  events_.insert(begin + first_piece, Event::Kind::departure, index);
  return end;
}

void Shards::begin_measurement(Time now) {
  measured_from_ = now;
  busy_ = memory_busy_ = 0;
  updates_before_ = updates_;
  answers_ = dropped_ = 0;
}

double Shards::cpu_share(Time now) const {
  return now > measured_from_ ? busy_ / (now - measured_from_) / static_cast<double>(shards_.size()) : 0.0;
}

double Shards::memory_share(Time now) const {
  return now > measured_from_ ? memory_busy_ / (now - measured_from_) / static_cast<double>(memory_free_at_.size())
                              : 0.0;
}

double Shards::dropped_share() const {
  return answers_ > 0 ? static_cast<double>(dropped_) / static_cast<double>(answers_) : 0.0;
}

}  // namespace gradrail::bench::predict
