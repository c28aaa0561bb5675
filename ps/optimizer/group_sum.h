#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ps/protocol/mode.h"

namespace gradrail::ps {

/// One payload of a step: the gradient of one worker, or the sum of several that an aggregator has made.
struct GradientTerm {
  WorkerIndex worker = 0;         ///< of a sum the first one
  const float* values = nullptr;  ///< a bucket; of a sum in fp32, else in the format of the run
  bool is_sum = false;
};

/// Sums the gradients of a step group by group, in ascending order of the workers. An aggregator calls sum_of() with
/// the gradients of its group. The sum of a group has therefore the same bits at both places.
/// Threads  One owner.
class GroupSum {
 public:
  /// The sums of the groups in fp32, in their order. A lone gradient in fp32 and a sum of an aggregator are not copied.
  /// A group of which only a part has come in a sum has several entries.
  /// Shapes  each term: `count` elements. The result is valid until the next call.
  /// Order   `terms` ascend by their workers.
  absl::Span<const float* const> sum(absl::Span<const GradientTerm> terms, uint32_t group_size, PushFormat format,
                                     size_t count);

 private:
  void end_group(PushFormat format, size_t count);

  std::vector<const float*> group_;  ///< gradients of the present group without a sum
  std::vector<const float*> sums_;
  std::vector<std::vector<float>> scratch_;  ///< memory for sums, kept from one step to the next
  size_t scratch_used_ = 0;
};

}  // namespace gradrail::ps
