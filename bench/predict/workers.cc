#include "bench/predict/workers.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace gradrail::bench::predict {

Workers::Workers(const Description& description, const Plan& plan, EventQueue& events, Network& network)
    : description_(description),
      plan_(plan),
      events_(events),
      network_(network),
      random_(kSeed),
      workers_(description.cluster.workers),
      buckets_(description.cluster.workers * plan.buckets.size()) {}

void Workers::start() {
  for (uint32_t i = 0; i < workers_.size(); ++i) begin_step(i, 0);
}

Time Workers::draw_compute() {
  const Load& load = description_.load;
  // With this mean of the logarithm the mean of the time is compute_ms.
  const double sigma = load.compute_sigma;
  const double factor = sigma > 0 ? std::exp(sigma * random_.normal() - sigma * sigma / 2) : 1;
  return load.compute_ms * 1e6 * factor;
}

void Workers::begin_step(uint32_t index, Time now) {
  Worker& worker = workers_[index];
  ++worker.step;
  worker.begun_at = now;
  worker.compute = draw_compute();
  worker.next_push = 0;
  worker.outstanding = static_cast<uint32_t>(plan_.buckets.size());
  worker.late_count = 0;
  worker.was_dropped = false;
  for (uint32_t i = 0; i < plan_.buckets.size(); ++i) {
    Bucket& each = bucket(index, i);
    each.is_pushed = each.is_late = false;
    each.is_outstanding = true;
    each.kind = ps::ArrivalKind::push;
  }
  computing_ += worker.compute;
  events_.insert(now + worker.compute * plan_.buckets[plan_.order[0]].ready, Event::Kind::push, index);
}

void Workers::on_push(uint32_t index, Time now) {
  Worker& worker = workers_[index];
  const uint32_t bucket = plan_.order[worker.next_push];
  const Time computed = worker.compute * plan_.buckets[bucket].ready;
  Trace trace;
  trace.add(Cause::compute, computed);
  trace.add(Cause::worker_cpu, now - worker.begun_at - computed);
  push(index, bucket, trace, now);
  if (++worker.next_push == plan_.order.size()) return;
  const Time ready = worker.begun_at + worker.compute * plan_.buckets[plan_.order[worker.next_push]].ready;
  events_.insert(std::max({now, ready, worker.free_at}), Event::Kind::push, index);
}

/// The rule of Exchange::push_bucket().
void Workers::push(uint32_t worker, uint32_t index, const Trace& trace, Time now) {
  bucket(worker, index).is_pushed = true;
  const uint32_t before = plan_.buckets[index].before;
  if (before != Plan::kNone && bucket(worker, before).is_outstanding) return;  // its answer starts this one
  send(worker, index, trace, now);
}

void Workers::send(uint32_t index, uint32_t bucket_index, Trace trace, Time now) {
  const Costs& costs = description_.costs;
  const Plan::Bucket& planned = plan_.buckets[bucket_index];
  const Bucket& sent = bucket(index, bucket_index);
  Worker& worker = workers_[index];
  const bool has_payload = sent.kind == ps::ArrivalKind::push;
  const double bytes = has_payload ? planned.push_bytes : sizeof(ps::SlotHeader);
  const Time begin = std::max(now, worker.free_at);
  const Time packed = begin + (has_payload ? planned.fp32_bytes * costs.pack_ns_per_byte : 0) + costs.message_us * 1e3;
  worker.free_at = packed + bytes * costs.send_ns_per_byte;
  busy_ += worker.free_at - begin;
  const Time departs_at = packed + std::min(bytes, kPieceBytes) * costs.send_ns_per_byte;
  trace.add(Cause::worker_cpu, departs_at - now);
  network_.send({.worker = index,
                 .shard = planned.shard,
                 .bucket = planned.index,
                 .kind = sent.kind,
                 .step = worker.step,
                 .version = sent.version,
                 .bytes = bytes,
                 .not_before = worker.free_at,
                 .trace = trace},
                departs_at);
}

/// The rule of Exchange::on_answer().
void Workers::on_answer(uint32_t message_index, Time now) {
  const Costs& costs = description_.costs;
  ++answers_;
  Message message = network_.message(message_index);
  network_.release(message_index);
  Worker& worker = workers_[message.worker];
  const Time work = message.bytes * costs.receive_ns_per_byte;
  const Time last_piece = std::min(message.bytes, kPieceBytes) * costs.receive_ns_per_byte;
  worker.free_at = std::max(worker.free_at + work, now + last_piece) + costs.message_us * 1e3;
  busy_ += work + costs.message_us * 1e3;
  message.trace.add(Cause::worker_cpu, worker.free_at - now);
  const uint32_t index = plan_.index_of(message.shard, message.bucket);
  Bucket& answered = bucket(message.worker, index);
  GRADRAIL_CHECK(answered.is_outstanding && message.step == worker.step);
  worker.was_dropped = worker.was_dropped || message.is_dropped;
  if (message.is_dropped && !description_.load.mode.drops_late && answered.kind == ps::ArrivalKind::push) {
    answered.is_late = true;
    ++worker.late_count;
  }
  answered.version = message.version;
  answered.is_outstanding = false;
  --worker.outstanding;
  const uint32_t after = plan_.buckets[index].after;
  if (after != Plan::kNone && bucket(message.worker, after).is_pushed && bucket(message.worker, after).is_outstanding)
    send(message.worker, after, message.trace, worker.free_at);
  if (worker.outstanding > 0) return;
  worker.late_count > 0 ? repeat_late(message.worker, message.trace, worker.free_at)
                        : end_step(message.worker, message.trace, worker.free_at);
}

/// The rule of Exchange::repeat_late().
void Workers::repeat_late(uint32_t index, const Trace& trace, Time now) {
  Worker& worker = workers_[index];
  worker.step = std::max(worker.step, lowest_version(index)) + 1;
  worker.late_count = 0;
  worker.outstanding = static_cast<uint32_t>(plan_.buckets.size());
  for (uint32_t i = 0; i < plan_.buckets.size(); ++i) {
    Bucket& each = bucket(index, i);
    each.kind = each.is_late ? ps::ArrivalKind::push : ps::ArrivalKind::absent;
    each.is_pushed = each.is_late = false;
    each.is_outstanding = true;
  }
  for (const uint32_t next : plan_.order) push(index, next, trace, now);
}

void Workers::end_step(uint32_t index, Trace trace, Time now) {
  Worker& worker = workers_[index];
  if (worker.done_steps >= kWarmup) {
    sums_.resize(std::max<size_t>(sums_.size(), worker.done_steps - kWarmup + 1));
    StepSum& sum = sums_[worker.done_steps - kWarmup];
    sum.seconds += (now - worker.begun_at) * 1e-9;
    if (++sum.workers == workers_.size()) ++all_steps_;
    worker.steps.step_s.push_back(static_cast<float>((now - worker.begun_at) * 1e-9));
    worker.steps.exchange_s.push_back(static_cast<float>((now - worker.begun_at - worker.compute) * 1e-9));
    float& compute = trace.ns[static_cast<size_t>(Cause::compute)];
    const auto own = static_cast<float>(worker.compute);
    trace.add(Cause::stragglers, std::max(0.0f, compute - own));
    compute = std::min(compute, own);
    for (size_t i = 0; i < kCauses; ++i) path_s_[i] += trace.ns[i] * 1e-9;
  }
  ++worker.done_steps;
  most_steps_ = std::max(most_steps_, worker.done_steps);
  if (worker.done_steps == kWarmup + kSteps) {
    ++finished_count_;
    return;
  }
  // The rule of Exchange::catch_up().
  if (worker.was_dropped) worker.step = std::max(worker.step, lowest_version(index));
  begin_step(index, now);
}

uint64_t Workers::lowest_version(uint32_t worker) const {
  uint64_t lowest = UINT64_MAX;
  const size_t first = worker * plan_.buckets.size();
  for (size_t i = 0; i < plan_.buckets.size(); ++i) lowest = std::min(lowest, buckets_[first + i].version);
  return lowest;
}

double Workers::done_share() const {
  const double all = static_cast<double>(buckets_.size()) * (kWarmup + kSteps);
  return std::min(1.0, static_cast<double>(answers_) / all);
}

bool Workers::is_settled() const {
  constexpr double kSettled = 1e-3;
  constexpr uint32_t kEqualSteps = 3;
  if (all_steps_ < kEqualSteps) return false;
  const double last = sums_[all_steps_ - 1].seconds;
  const auto end = sums_.begin() + all_steps_;
  return std::all_of(end - kEqualSteps, end,
                     [&](const StepSum& sum) { return std::fabs(sum.seconds - last) <= kSettled * last; });
}

void Workers::begin_measurement(Time now) {
  measured_from_ = now;
  busy_ = computing_ = 0;
}

double Workers::cpu_share(Time now) const {
  return now > measured_from_ ? busy_ / (now - measured_from_) / static_cast<double>(workers_.size()) : 0.0;
}

double Workers::compute_share(Time now) const {
  return now > measured_from_ ? computing_ / (now - measured_from_) / static_cast<double>(workers_.size()) : 0.0;
}

}  // namespace gradrail::bench::predict
