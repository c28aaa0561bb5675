#include "worker/tree/node_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "fmt/format.h"
#include "ps/optimizer/optimizer.h"

namespace gradrail::tree {

NodeStore::NodeStore(const OptimizerConfig& optimizer, SharedMemory memory, ps::ElementRange range, Upstream upstream,
                     std::function<void(NodeStore*)> on_end)
    : ParameterStore(optimizer, memory.span(), range.count),
      memory_(std::move(memory)),
      range_(range),
      upstream_(std::move(upstream)),
      on_end_(std::move(on_end)) {}

NodeStore::~NodeStore() {
  if (on_end_) on_end_(this);
}

absl::Status NodeStore::copy_out(size_t offset, size_t count, float* target) {
  GRADRAIL_CHECK(offset + count <= count_);
  std::memcpy(target, mutable_parameters() + offset, count * sizeof(float));
  return absl::OkStatus();
}

absl::Status NodeStore::set(size_t offset, absl::Span<const float> values) {
  GRADRAIL_CHECK(offset + values.size() <= count_);
  std::copy(values.begin(), values.end(), mutable_parameters() + offset);
  if (upstream_.is_started) return absl::OkStatus();
  std::copy(values.begin(), values.end(), upstream_.parameters + range_.first + offset);
  begin(offset, values.size());
  upstream_.offer(values.size());
  return absl::OkStatus();
}

absl::Status NodeStore::update(size_t offset, size_t count, absl::Span<const float* const> gradients,
                               absl::Span<float* const> targets, Step step) {
  GRADRAIL_CHECK(!gradients.empty() && targets.empty() && offset + count <= count_);
  if (!try_end(offset)) {
    return absl::FailedPreconditionError(
        fmt::format("step {}: a worker has pushed it before it had the answer to the one before", step.index));
  }
  const ps::ElementRange range = {range_.first + offset, count};
  ps::mean_of(gradients, step.weights, step.format, {upstream_.gradients + range.first, count});
  begin(offset, count);
  upstream_.push({.range = range, .step = step.index, .rate = step.rate, .weight = step.weight});
  return absl::OkStatus();
}

absl::Status NodeStore::copy_state(int /*vector*/, size_t /*offset*/, absl::Span<float> to) {
  std::fill(to.begin(), to.end(), 0.0f);  // the parent has the state of the optimizer
  return absl::OkStatus();
}

absl::Status NodeStore::set_state(int /*vector*/, size_t /*offset*/, absl::Span<const float> /*values*/) {
  return absl::OkStatus();
}

void NodeStore::set_wake(std::function<void()> wake) {
  const MutexLock lock(mutex_);
  wake_ = std::move(wake);
}

void NodeStore::begin(size_t offset, size_t count) {
  if (count == 0) return;
  const MutexLock lock(mutex_);
  under_way_[range_.first + offset] = {.count = count, .missing = count};
}

bool NodeStore::try_end(size_t offset) {
  const uint64_t first = range_.first + offset;
  uint64_t count = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = under_way_.find(first);
    if (found == under_way_.end()) return true;
    if (found->second.missing > 0) return false;
    count = found->second.count;
    under_way_.erase(found);
  }
  // No gradient of the next step leaves before this answer: the client changes nothing here.
  std::memcpy(mutable_parameters() + offset, upstream_.parameters + first, count * sizeof(float));
  return true;
}

void NodeStore::on_arrived(ps::ElementRange arrived) {
  const MutexLock lock(mutex_);
  bool has_ended = false;
  for (auto part = under_way_.begin(); part != under_way_.end() && part->first < arrived.first + arrived.count;
       ++part) {
    const uint64_t first = std::max(part->first, arrived.first);
    const uint64_t end = std::min(part->first + part->second.count, arrived.first + arrived.count);
    if (first >= end) continue;
    part->second.missing -= std::min(part->second.missing, end - first);
    has_ended = has_ended || part->second.missing == 0;
  }
  if (has_ended && wake_) wake_();
}

void NodeStore::end_all() {
  const MutexLock lock(mutex_);
  for (auto& [first, part] : under_way_) part.missing = 0;
  if (wake_) wake_();
}

}  // namespace gradrail::tree
