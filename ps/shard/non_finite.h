#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "ps/shard/environment.h"
#include "ps/shard/partition.h"
#include "ps/shard/shard_protocol.h"

namespace gradrail::ps {

/// The gradient of one worker in a step.
struct GradientTerm {
  WorkerIndex worker = 0;
  const float* values = nullptr;  ///< a bucket, in the format of the run
};

/// Watches the parameters of a shard, and the optimizer's state, for NaN and infinity. The kernels find them in the
/// pass of the update (ParameterStore::last_is_finite). Only then this class reads the gradients of the step, which are
/// still in their slots, and finds the worker and the element.
///
/// NaN spreads: with it in the parameters of one bucket, the next gradients of all workers have it in all buckets.
/// Therefore a shard reports the first one only, until all its buckets are finite again. A gradient counts if its
/// bucket was finite before. The optimizer `mean` keeps no parameters, so that each of its steps counts.
/// Errors   Parameters in GPU memory are not watched.
/// Threads  Owner thread of the shard.
class NonFiniteWatch {
 public:
  NonFiniteWatch(const ShardEnvironment& environment, const Partition& partition)
      : environment_(environment), partition_(partition) {}

  /// The parameters of all buckets have changed in another way: from a checkpoint, or from a former primary.
  void reset();
  /// The initial values of a worker are in the bucket.
  void on_initialised(const Action& action, absl::Span<const float> values);
  /// An update with this result of the store changes nothing here.
  bool stays_finite(bool is_finite) const { return is_finite && finite_count_ == states_.size(); }
  /// An update has ended, with this result of the store. `terms` are the gradients of the action.
  void on_updated(const Action& action, bool is_finite, absl::Span<const GradientTerm> terms) {
    if (!stays_finite(is_finite)) record(action, is_finite, terms);
  }

  /// Buckets with NaN or infinity in their parameters or state now.
  uint32_t odd_buckets() const { return odd_count_; }
  /// Gradients of buckets, by worker.
  const std::map<WorkerIndex, uint64_t>& gradients() const { return gradients_; }

 private:
  enum class State : uint8_t { unknown, finite, odd };
  void record(const Action& action, bool is_finite, absl::Span<const GradientTerm> terms);
  State change(uint32_t bucket, bool is_finite);
  std::optional<NonFinite> find_gradient(const Action& action, absl::Span<const GradientTerm> terms);
  NonFinite find_parameter(const Action& action, bool is_known) const;
  NonFinite find_state(const Action& action, bool is_known) const;
  NonFinite found(const Action& action, NonFinite::Source source, absl::Span<const float> values, size_t at) const;
  void report(const NonFinite& first) const;
  void report_finite() const;

  const ShardEnvironment& environment_;
  const Partition& partition_;
  std::vector<State> states_;  ///< state of each bucket
  uint32_t finite_count_ = 0;
  uint32_t odd_count_ = 0;
  std::map<WorkerIndex, uint64_t> gradients_;
  std::vector<float> decoded_;  ///< decoded elements of one gradient; empty until the first one is needed
};

}  // namespace gradrail::ps
