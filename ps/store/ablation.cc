#include "ps/store/ablation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace gradrail::ps {
namespace {

/// Writes the mean of the gradients into `parameters` and each target, all of `count` elements.
void store_mean(float* parameters, size_t count, absl::Span<const float* const> gradients,
                absl::Span<float* const> targets) {
  // 4 KiB: a run stays in the first cache from one gradient to the next, as in the sums of the kernels.
  constexpr size_t kElementsAtOnce = 1024;
  // The factor is computed once per call: a multiplication for each element instead of a division.
  const float scale = 1.0f / static_cast<float>(gradients.size());
  for (size_t first = 0; first < count; first += kElementsAtOnce) {
    const size_t some = std::min(kElementsAtOnce, count - first);
    float* const mean = parameters + first;
    std::copy_n(gradients[0] + first, some, mean);
    for (const float* const gradient : gradients.subspan(1)) {
      for (size_t i = 0; i < some; ++i) mean[i] += gradient[first + i];
    }
    if (gradients.size() > 1) {
      for (size_t i = 0; i < some; ++i) mean[i] *= scale;
    }
    for (float* const target : targets) std::copy_n(mean, some, target + first);
  }
}

/// A store around another one, which holds the values.
class AblationStore final : public ParameterStore {
 public:
  AblationStore(const OptimizerConfig& optimizer, size_t count, std::unique_ptr<ParameterStore> inner,
                const Ablation& ablation)
      : ParameterStore(optimizer, inner->parameters(), count), inner_(std::move(inner)), left_out_(ablation) {
    // store_mean() writes host memory.
    GRADRAIL_CHECK(!left_out_.no_optimizer || inner_->device() == nullptr);
  }

  std::string where() const override { return inner_->where(); }
  StoreDevice* device() override { return inner_->device(); }
  bool returns_parameters() const override { return !left_out_.no_return; }

  absl::StatusOr<const float*> fresh_parameters(size_t offset, size_t count) override {
    return inner_->fresh_parameters(offset, count);
  }
  absl::Status copy_out(size_t offset, size_t count, float* target) override {
    return left_out_.no_return ? absl::OkStatus() : inner_->copy_out(offset, count, target);
  }
  absl::Status set(size_t offset, absl::Span<const float> values) override { return inner_->set(offset, values); }

  absl::Status update(size_t offset, size_t count, absl::Span<const float* const> gradients,
                      absl::Span<float* const> targets, Step step) override {
    // The workers still receive a notice: the number of messages stays the same.
    if (left_out_.no_return) targets = {};
    if (left_out_.no_sum) gradients = gradients.first(1);
    if (!left_out_.no_optimizer) {
      const absl::Status updated = inner_->update(offset, count, gradients, targets, step);
      last_is_finite_ = inner_->last_is_finite();
      return updated;
    }
    GRADRAIL_CHECK(step.format == PushFormat::fp32);  // benchmarks push nothing else
    if (!left_out_.no_sum) {
      store_mean(mutable_parameters() + offset, count, gradients, targets);
      return absl::OkStatus();
    }
    // Nothing is computed, but the targets must be written: the way back is part of the measurement.
    for (float* const target : targets) GRADRAIL_RETURN_IF_ERROR(inner_->copy_out(offset, count, target));
    return absl::OkStatus();
  }

  absl::Status copy_state(int vector, size_t offset, absl::Span<float> to) override {
    return inner_->copy_state(vector, offset, to);
  }
  absl::Status set_state(int vector, size_t offset, absl::Span<const float> values) override {
    return inner_->set_state(vector, offset, values);
  }

 private:
  const std::unique_ptr<ParameterStore> inner_;
  const Ablation left_out_;
};

}  // namespace

StoreMaker with_ablation(StoreMaker make, Ablation ablation) {
  if (!ablation.any()) return make;
  // The maker is wrapped, not the store: a shard makes its store in its own thread.
  return
      [make = std::move(make), ablation](const OptimizerConfig& optimizer, size_t count,
                                         const MemoryBinder& place) -> absl::StatusOr<std::unique_ptr<ParameterStore>> {
        GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<ParameterStore> inner, make(optimizer, count, place));
        return std::make_unique<AblationStore>(optimizer, count, std::move(inner), ablation);
      };
}

}  // namespace gradrail::ps
