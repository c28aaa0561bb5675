#include "ps/store/parameter_store.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "ps/optimizer/optimizer.h"

namespace gradrail::ps {
namespace {

/// Parameters and state in host memory; apply() updates them.
class HostStore final : public ParameterStore {
 public:
  HostStore(const OptimizerConfig& optimizer, SharedMemory memory, size_t count)
      : ParameterStore(optimizer, memory.span(), count), memory_(std::move(memory)) {
    // Written in the owner's thread: the first access decides the NUMA node of a page.
    for (int i = 0; i < state_vectors(optimizer.kind); ++i) state_[i].assign(count, 0.0f);
  }

  std::string where() const override { return "host"; }

  absl::Status copy_out(size_t offset, size_t count, float* target) override {
    // assert and not a check: this runs for each answer.
    assert(offset + count <= count_);
    std::memcpy(target, mutable_parameters() + offset, count * sizeof(float));
    return absl::OkStatus();
  }

  absl::Status set(size_t offset, absl::Span<const float> values) override {
    GRADRAIL_CHECK(offset + values.size() <= count_);
    std::memcpy(mutable_parameters() + offset, values.data(), values.size() * sizeof(float));
    return absl::OkStatus();
  }

  absl::Status update(size_t offset, size_t count, absl::Span<const float* const> gradients,
                      absl::Span<float* const> targets, Step step) override {
    GRADRAIL_CHECK(!gradients.empty() && offset + count <= count_);
    const size_t in_pass = std::min(targets.size(), kMaxTargets);
    const float* mean = nullptr;
    if (gradients.size() > kMaxGradients) {
      mean_.resize(count);
      mean_of(gradients, step.weights, step.format, absl::MakeSpan(mean_));
      step.weights = {};
      // A lone gradient keeps its scale of 1 in apply().
      mean = mean_.data();
      step.format = PushFormat::fp32;
      gradients = absl::MakeConstSpan(&mean, 1);
    }
    last_is_finite_ =
        apply(optimizer_, {.count = count,
                           .parameters = mutable_parameters() + offset,
                           .state = {state_at(0, offset), state_at(1, offset)},
                           .gradients = gradients,
                           .weights = step.weights,
                           .format = step.format,
                           .targets = targets.first(in_pass),
                           .update_index = step.index,
                           .rate = step.rate,
                           // The buckets of a shard follow each other: together they displace what the cache holds.
                           .pass_count = count_});
    for (float* const target : targets.subspan(in_pass)) std::copy_n(mutable_parameters() + offset, count, target);
    return absl::OkStatus();
  }

  absl::Status copy_state(int vector, size_t offset, absl::Span<float> to) override {
    GRADRAIL_CHECK(offset + to.size() <= state_[vector].size());
    std::copy_n(state_[vector].begin() + static_cast<ptrdiff_t>(offset), to.size(), to.begin());
    return absl::OkStatus();
  }
  absl::Status set_state(int vector, size_t offset, absl::Span<const float> values) override {
    GRADRAIL_CHECK(offset + values.size() <= state_[vector].size());
    std::copy(values.begin(), values.end(), state_[vector].begin() + static_cast<ptrdiff_t>(offset));
    return absl::OkStatus();
  }

 private:
  float* state_at(int vector, size_t offset) {
    return state_[vector].empty() ? nullptr : state_[vector].data() + offset;
  }

  const SharedMemory memory_;
  std::vector<float> state_[2];
  std::vector<float> mean_;  // scratch for more gradients than the kernels take in one call
};

}  // namespace

absl::StatusOr<SharedMemory> allocate_parameters(size_t count, const MemoryBinder& place) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::create("gradrail-parameters", count * sizeof(float));
  // The binding must be first: the first write to a page decides its place.
  if (memory.ok() && place) place(memory->span());
  return memory;
}

absl::StatusOr<std::unique_ptr<ParameterStore>> make_host_store(const OptimizerConfig& optimizer, size_t count,
                                                                const MemoryBinder& place) {
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory memory, allocate_parameters(count, place));
  return std::make_unique<HostStore>(optimizer, std::move(memory), count);
}

}  // namespace gradrail::ps
