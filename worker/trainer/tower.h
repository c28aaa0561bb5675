#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "gpu/reduce/tower_sum.h"
#include "worker/models/workload.h"

namespace gradrail::worker {

/// Copies of a workload, each on its own thread, as one workload. Its batch combines their batches, and its gradient is
/// the mean of theirs. The sum has the order of the towers whichever is first, so that reruns agree bit for bit.
/// Threads  One owner, which averages each tensor as soon as all towers have it and calls `ready`; the towers compute.
class Towers final : public Workload {
 public:
  using Make = std::function<absl::StatusOr<std::unique_ptr<Workload>>(size_t tower)>;

  /// Starts `count` threads; each first calls `on_thread` (to bind it before any allocation), then `make`. Towers with
  /// their own devices average among themselves by NCCL if `reduce` allows it.
  /// Errors  The error of `make` from the first tower that has one. FAILED_PRECONDITION: NCCL was requested and is not
  ///         available.
  static absl::StatusOr<std::unique_ptr<Towers>> create(size_t count, const Make& make,
                                                        const std::function<void(size_t tower)>& on_thread,
                                                        gpu::Reduce reduce = gpu::Reduce::automatic);
  ~Towers() override;

  const Schema& schema() const override;
  void initialise(uint64_t seed, Gradients parameters) const override;
  size_t batches_per_epoch() const override;
  size_t batch_size() const override;
  void seek(uint64_t step) override { step_ = step; }
  /// Each tower does so by itself, as soon as it has computed.
  void prefetch() override {}
  /// Errors  The error of the first tower that has one, with its number; the others have ended their step, too.
  absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) override;
  /// The mean of the towers'.
  std::optional<float> batch_accuracy() override;
  absl::StatusOr<Verdict> verdict(Parameters parameters) override;
  /// The first tower's, where the devices average among themselves; the others copy its parameters.
  DeviceBlock device_block() override;
  void stay_on_device() override;
  void meanwhile(std::function<void()> work) override { meanwhile_ = std::move(work); }
  void release_memory() override;
  /// The first tower's.
  std::string launches() const override;
  /// "NCCL 2.28.9" or "host".
  std::string averaged_by() const { return sum_ == nullptr ? "host" : sum_->name(); }

 private:
  class Tower;
  Towers() = default;
  void finished();
  void wait_finished(size_t count);
  absl::Status choose_sum(gpu::Reduce reduce);
  void compute(size_t index, uint64_t step, Parameters parameters, Gradients gradients);
  void gradient_ready(size_t tensor);
  std::optional<size_t> next_complete();
  absl::StatusOr<float> mean_cost();
  void average_tensor(size_t tensor, absl::Span<float> target) const;

  std::vector<std::unique_ptr<Tower>> towers_;
  std::unique_ptr<gpu::TowerSum> sum_;  ///< sum between devices; null: the owner averages
  std::function<void()> meanwhile_;     ///< work of the owner while it waits
  uint64_t step_ = 0;                   ///< step of the next batch

  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<size_t> arrived_ ABSL_GUARDED_BY(mutex_);  ///< number of towers that have the gradient of each tensor
  std::deque<size_t> complete_ ABSL_GUARDED_BY(mutex_);  ///< tensors that all towers have, to be averaged
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);         ///< error of the first tower that failed
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;              ///< towers that have finished their jobs
};

}  // namespace gradrail::worker
