#include "tests/simulation/ledger.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "tests/simulation/scheduler.h"

namespace gradrail::simulation {
namespace {

constexpr size_t kCycle = 8;
constexpr size_t kBucketElements = 16;
/// Each number of contributors divides it: the mean of a counter's gradients is a whole number.
constexpr float kCountInSums = 12.0f;

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

std::string Shape::text() const {
  return fmt::format("{} workers {} servers {}x{} buckets {} steps {}{}{}",
                     ps::mode_text({.kind = mode, .worker_count = workers, .bound = bound, .grace = grace}), workers,
                     servers, shards_per_server, buckets, steps, backups ? " backups" : "",
                     checkpoints ? " checkpoints" : "");
}

Ledger::Ledger(const Shape& shape)
    : shape_(shape), pushes_(shape.workers), last_counts_(shape.workers), is_exact_(shape.mode == ps::ModeKind::sync) {
  model_.push_back(initial());
}

std::vector<float> Ledger::initial() const {
  std::vector<float> values(shape_.elements());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i % kCycle < kMaxSimulatedWorkers ? 0.0f : static_cast<float>(i);
  return values;
}

void Ledger::fill_gradient(uint32_t worker, uint64_t position, absl::Span<const float> parameters,
                           absl::Span<float> gradient) const {
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (i % kCycle < kMaxSimulatedWorkers) {
      gradient[i] = i % kCycle == worker ? -(shape_.sums() ? kCountInSums : 1.0f) : 0.0f;
    } else {
      const uint64_t bits =
          mix(mix(position * 64 + worker) ^ (uint64_t{std::bit_cast<uint32_t>(parameters[i])} << 20) ^ i);
      gradient[i] = static_cast<float>(static_cast<int>(bits % 17) - 8);
    }
  }
}

const std::vector<float>& Ledger::undisturbed(uint64_t position) {
  while (model_.size() <= position) {
    const std::vector<float> last = model_.back();
    std::vector<float> sum(last.size()), gradient(last.size());
    for (uint32_t worker = 0; worker < shape_.workers; ++worker) {
      fill_gradient(worker, model_.size() - 1, last, absl::MakeSpan(gradient));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    std::vector<float> next = last;
    const float scale = 1.0f / static_cast<float>(shape_.workers);
    for (size_t i = 0; i < sum.size(); ++i) next[i] = last[i] - sum[i] * scale;
    model_.push_back(std::move(next));
  }
  return model_[position];
}

float Ledger::own_count(uint32_t worker, size_t bucket, absl::Span<const float> parameters) const {
  return parameters[bucket * kBucketElements + worker];
}

void Ledger::on_start(uint32_t worker, uint64_t position, absl::Span<const float> parameters) {
  last_counts_[worker].clear();
  for (size_t bucket = 0; bucket < shape_.buckets; ++bucket)
    last_counts_[worker].push_back(own_count(worker, bucket, parameters));
  check_counters(worker, parameters);
  check_exact(worker, position, parameters);
}

void Ledger::on_step(uint32_t worker, uint64_t before, uint64_t position, bool returned,
                     absl::Span<const float> parameters) {
  ++steps_;
  if (returned) return on_start(worker, position, parameters);
  check_counters(worker, parameters);
  if (!shape_.sums()) {
    if (position != before + 1) violate(fmt::format("worker {}: position {} follows {}", worker, position, before));
    for (size_t bucket = 0; bucket < shape_.buckets; ++bucket) {
      const float count = own_count(worker, bucket, parameters);
      if (count != last_counts_[worker][bucket] + 1) {
        violate(fmt::format("worker {} bucket {}: {} gradients are applied after step {}, {} before it", worker, bucket,
                            count, position, last_counts_[worker][bucket]));
      }
      last_counts_[worker][bucket] = count;
    }
  }
  check_exact(worker, position, parameters);
}

void Ledger::check_counters(uint32_t worker, absl::Span<const float> parameters) {
  for (size_t bucket = 0; bucket < shape_.buckets; ++bucket) {
    for (uint32_t other = 0; other < shape_.workers; ++other) {
      const float count = own_count(other, bucket, parameters);
      const float most = static_cast<float>(pushes_[other]) * (shape_.sums() ? kCountInSums : 1.0f);
      if (count <= most) continue;
      violate(fmt::format("worker {} sees {} of worker {} in bucket {}, and at most {} was pushed", worker, count,
                          other, bucket, most));
    }
  }
}

void Ledger::check_exact(uint32_t worker, uint64_t position, absl::Span<const float> parameters) {
  if (!is_exact_) return;
  if (!same_bits(parameters, undisturbed(position))) {
    if (const std::string why = reason_to_differ ? reason_to_differ() : ""; !why.empty()) return stop_exact(why);
    violate(fmt::format("worker {}: the parameters after {} steps are not those of an undisturbed run: {}", worker,
                        position, first_difference(parameters, undisturbed(position))));
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
