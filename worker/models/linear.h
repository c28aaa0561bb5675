#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "worker/models/workload.h"

namespace gradrail::worker {

/// The smallest workload: fits y = 2x + 10 to generated points; cost is the mean squared error. The curvature for x in
/// [-1, 1) is at most 2·(1 + 1/3) and the largest stable rate 0.75. A rate of 0.1 converges even when gradients are a
/// few updates old.
class Linear final : public Workload {
 public:
  Linear(size_t batch_size, uint64_t seed, uint64_t task_index);

  const Schema& schema() const override { return schema_; }
  void initialise(uint64_t seed, Gradients parameters) const override;
  size_t batches_per_epoch() const override { return 100; }
  size_t batch_size() const override { return inputs_.size(); }
  void seek(uint64_t step) override;
  void prefetch() override;
  absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) override;
  absl::StatusOr<Verdict> verdict(Parameters parameters) override;

 private:
  const Schema schema_;
  const uint64_t seed_;
  std::vector<float> inputs_;
  uint64_t step_ = 0;   ///< step of the next batch
  bool ready_ = false;  ///< the next batch has been prepared
};

}  // namespace gradrail::worker
