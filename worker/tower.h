#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/models/workload.h"

namespace gradrail::worker {

/// Replicas of a workload, each on a thread of its own, as one workload: its batch is theirs together, its gradient the
/// mean of theirs, summed in the order of the towers whoever is done first, so that reruns agree bit for bit.
/// Threads  One owner, which averages each tensor as soon as all towers have it and tells `ready`; the towers compute.
class Towers final : public Workload {
 public:
  using Make = std::function<absl::StatusOr<std::unique_ptr<Workload>>(size_t tower)>;

  /// Starts `count` threads; each first calls `on_thread` (to be bound, before anything is allocated), then `make`.
  /// Errors  of `make`, from the first tower that has one.
  static absl::StatusOr<std::unique_ptr<Towers>> create(size_t count, const Make& make,
                                                        const std::function<void(size_t tower)>& on_thread);
  ~Towers() override;

  const ps::Schema& schema() const override;
  void initialise(uint64_t seed, Gradients parameters) const override;
  size_t batches_per_epoch() const override;
  size_t batch_size() const override;
  /// Each tower does so by itself, as soon as it has computed.
  void prefetch() override {}
  /// Errors  of the first tower that has one, and its number; the others have ended their step, too.
  absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) override;
  absl::StatusOr<std::vector<std::string>> verdict(Parameters parameters) override;
  void release_memory() override;

 private:
  class Tower;
  Towers() = default;
  void finished();
  void wait_finished(size_t count);
  void compute(Tower& tower, Parameters parameters);
  std::optional<size_t> next_complete();
  absl::StatusOr<float> mean_cost() const;
  void average_tensor(size_t tensor, absl::Span<float> target) const;

  std::vector<std::unique_ptr<Tower>> towers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<size_t> arrived_;  ///< under mutex_: by tensor, towers that have its gradient
  std::deque<size_t> complete_;  ///< under mutex_: tensors that all towers have, to be averaged
  bool failed_ = false;          ///< under mutex_: a tower has, in this step
  size_t done_ = 0;              ///< under mutex_: towers that have finished what they were told
};

}  // namespace gradrail::worker
