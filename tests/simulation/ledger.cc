#include "tests/simulation/ledger.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "fmt/format.h"
#include "ps/optimizer/optimizer.h"
#include "ps/optimizer/returns.h"
#include "tests/simulation/scheduler.h"

namespace gradrail::simulation {
namespace {

constexpr size_t kCycle = 8;
/// Each bucket of the shards has a counter of each worker: they begin at multiples of so many elements.
constexpr size_t kCounterEvery = 16;
/// Each number of contributors divides it: the mean of a counter's gradients is a whole number.
constexpr float kCountInSums = 12.0f;
/// The largest magnitude of a gradient.
constexpr float kLargest = 12.0f;

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15ull;
  return value ^ (value >> 29);
}

bool same_bits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string first_difference(absl::Span<const float> got, absl::Span<const float> expected) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) return fmt::format("element {} is {}, expected {}", i, got[i], expected[i]);
  }
  return "";
}

}  // namespace

ps::ElementRange Shape::fragment(uint32_t index) const {
  const auto first_bucket = [this](uint32_t fragment) { return uint64_t{buckets} * fragment / fragments; };
  const uint64_t first = first_bucket(index) * bucket_elements();
  return {.first = first, .count = first_bucket(index + 1) * bucket_elements() - first};
}

float Shape::weight(uint32_t worker, int64_t position) const {
  // Equal ones too: the mean is then formed in another way.
  return weights ? static_cast<float>(1 + mix(mix(static_cast<uint64_t>(position)) ^ worker) % 3) : 1.0f;
}

std::string Shape::text() const {
  return fmt::format(
      "{} workers {} servers {}x{} buckets {} fragments {} steps {} push {} return {}{}{}{}{}",
      mode_text({.kind = mode, .worker_count = workers, .bound = bound, .grace = grace, .drops_late = drops_late}),
      workers, servers, shards_per_server, buckets, fragments, steps, push_format_name(push),
      return_format_name(returns), weights ? " weights" : "", few_slots ? " slots" : "", backups ? " backups" : "",
      checkpoints ? " checkpoints" : "");
}

Ledger::Ledger(const Shape& shape)
    : shape_(shape),
      pushes_(shape.workers, std::vector<uint64_t>(shape.fragments)),
      first_counts_(shape.workers),
      own_steps_(shape.workers),
      is_exact_(shape.mode == ModeKind::sync) {
  const std::vector<float> values = initial();
  model_.push_back({values, values, std::vector<std::vector<float>>(shape.workers, std::vector<float>(values.size()))});
}

/// bf16 has these values.
std::vector<float> Ledger::initial() const {
  std::vector<float> values(shape_.elements());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i % kCycle < kMaxSimulatedWorkers ? 0.0f : static_cast<float>(i % 128);
  return values;
}

void Ledger::fill_gradient(uint32_t worker, int64_t position, const ps::ElementRange& range,
                           absl::Span<const float> parameters, absl::Span<float> gradient) const {
  for (size_t i = range.first; i < range.first + range.count; ++i) {
    if (i % kCycle < kMaxSimulatedWorkers) {
      gradient[i] = i % kCycle == worker ? -(shape_.sums() ? kCountInSums : 1.0f) : 0.0f;
    } else {
      const uint64_t bits = mix(mix(static_cast<uint64_t>(position) * 64 + worker) ^
                                (uint64_t{std::bit_cast<uint32_t>(parameters[i])} << 20) ^ i);
      gradient[i] = static_cast<float>(static_cast<int>(bits % 17) - 8);
    }
  }
}

void Ledger::round_push(absl::Span<float> gradient, std::vector<float>& rests) const {
  if (shape_.push == PushFormat::fp32) return;
  const size_t in_bucket = shape_.bucket_elements();
  std::vector<float> packed(in_bucket);
  for (size_t first = 0; first < gradient.size(); first += in_bucket) {
    const absl::Span<float> bucket = gradient.subspan(first, in_bucket);
    ps::pack(shape_.push, bucket, &rests[first], packed.data());
    const float* const pushed = packed.data();
    ps::mean_of({&pushed, 1}, {}, shape_.push, bucket);
  }
}

std::vector<float> Ledger::mean(const std::vector<std::vector<float>>& gradients, int64_t position) const {
  std::vector<const float*> pointers;
  std::vector<float> weights;
  for (uint32_t worker = 0; worker < shape_.workers; ++worker) {
    pointers.push_back(gradients[worker].data());
    weights.push_back(shape_.weight(worker, position));
  }
  if (std::adjacent_find(weights.begin(), weights.end(), std::not_equal_to<>()) == weights.end()) weights.clear();
  std::vector<float> result(shape_.elements());
  ps::mean_of(pointers, weights, PushFormat::fp32, absl::MakeSpan(result));
  return result;
}

const Ledger::State& Ledger::undisturbed(int64_t position) {
  const ps::ElementRange all = {.count = shape_.elements()};
  while (model_.size() <= static_cast<size_t>(position)) {
    State next = model_.back();
    std::vector<std::vector<float>> gradients(shape_.workers, std::vector<float>(all.count));
    for (uint32_t worker = 0; worker < shape_.workers; ++worker) {
      fill_gradient(worker, static_cast<int64_t>(model_.size()) - 1, all, next.seen, absl::MakeSpan(gradients[worker]));
      round_push(absl::MakeSpan(gradients[worker]), next.rests[worker]);
    }
    const std::vector<float> step = mean(gradients, static_cast<int64_t>(model_.size()) - 1);
    for (size_t i = 0; i < step.size(); ++i) next.parameters[i] -= step[i];
    next.seen = next.parameters;
    if (shape_.returns != ReturnFormat::fp32) {
      std::vector<uint16_t> rounded(all.count);
      ps::round_to_bf16(next.parameters, rounded.data());
      ps::widen_bf16(rounded.data(), absl::MakeSpan(next.seen));
    }
    model_.push_back(std::move(next));
  }
  return model_[static_cast<size_t>(position)];
}

float Ledger::slack(float count) const {
  float pushed = 0.0f;  // a step of a block, as the rests at begin and end can be half of one
  if (shape_.push == PushFormat::int8) pushed = kLargest * 1.1f / 127.0f;
  if (shape_.push == PushFormat::int4) pushed = kLargest * 1.6f / 7.0f;
  if (shape_.push.kind == PushFormat::topk) pushed = std::abs(count) / 128.0f;  // the rounding of what has gathered
  return pushed + (shape_.returns == ReturnFormat::fp32 ? 0.0f : std::abs(count) / 128.0f);
}

void Ledger::on_start(uint32_t worker, const std::vector<int64_t>& positions, absl::Span<const float> parameters) {
  first_counts_[worker].clear();
  for (size_t i = worker; i < parameters.size(); i += kCounterEvery) first_counts_[worker].push_back(parameters[i]);
  own_steps_[worker].assign(shape_.fragments, 0);
  for (uint32_t fragment = 0; fragment < shape_.fragments; ++fragment) {
    check_counters(worker, fragment, parameters);
    check_exact(worker, fragment, positions[fragment], parameters);
  }
}

void Ledger::on_step(uint32_t worker, uint32_t fragment, int64_t before, int64_t position,
                     absl::Span<const float> parameters) {
  ++steps_;
  check_counters(worker, fragment, parameters);
  if (!shape_.sums()) {
    if (position != before + 1) violate(fmt::format("worker {}: position {} follows {}", worker, position, before));
    ++own_steps_[worker][fragment];
    check_own_counters(worker, fragment, parameters);
  }
  check_exact(worker, fragment, position, parameters);
}

void Ledger::check_own_counters(uint32_t worker, uint32_t fragment, absl::Span<const float> parameters) {
  if (shape_.push.kind == PushFormat::topk) return;
  const ps::ElementRange range = shape_.fragment(fragment);
  for (size_t i = range.first + worker; i < range.first + range.count; i += kCounterEvery) {
    const float expected = first_counts_[worker][i / kCounterEvery] + static_cast<float>(own_steps_[worker][fragment]);
    if (std::abs(parameters[i] - expected) <= 2 * slack(expected)) continue;
    violate(
        fmt::format("worker {} element {}: {} gradients are applied, expected {}", worker, i, parameters[i], expected));
  }
}

void Ledger::check_counters(uint32_t worker, uint32_t fragment, absl::Span<const float> parameters) {
  const ps::ElementRange range = shape_.fragment(fragment);
  for (uint32_t other = 0; other < shape_.workers; ++other) {
    const float most = static_cast<float>(pushes_[other][fragment]) * (shape_.sums() ? kCountInSums : 1.0f);
    for (size_t i = range.first + other; i < range.first + range.count; i += kCounterEvery) {
      if (parameters[i] <= most + slack(most)) continue;
      violate(fmt::format("worker {} sees {} of worker {} in element {}, and at most {} was pushed", worker,
                          parameters[i], other, i, most));
    }
  }
}

void Ledger::check_exact(uint32_t worker, uint32_t fragment, int64_t position, absl::Span<const float> parameters) {
  if (!is_exact_) return;
  const ps::ElementRange range = shape_.fragment(fragment);
  const absl::Span<const float> expected =
      absl::MakeConstSpan(undisturbed(position).seen).subspan(range.first, range.count);
  const absl::Span<const float> got = parameters.subspan(range.first, range.count);
  if (!same_bits(got, expected)) {
    if (const std::string why = reason_to_differ ? reason_to_differ() : ""; !why.empty()) return stop_exact(why);
    violate(
        fmt::format("worker {}: the parameters of fragment {} after {} steps are not those of an undisturbed run: {}",
                    worker, fragment, position, first_difference(got, expected)));
  }
  ++exact_steps_;
}

void Ledger::stop_exact(const std::string& why) {
  if (!std::exchange(is_exact_, false)) return;
  Scheduler::instance().trace("from here on the run may differ from an undisturbed one: " + why);
}

void Ledger::violate(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = what;
  Scheduler::instance().trace("VIOLATION: " + what);
}

}  // namespace gradrail::simulation
