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
  const float* values = nullptr;  ///< a bucket; of a sum in sum_format(), else in the format of the run
  bool is_sum = false;
};

/// Writes the sum of the gradients of one group: ((g0+g1)+g2)+… in fp32, rounded to sum_format(format). An aggregator
/// and a shard call it with the same gradients. The sum of a group has therefore the same bits at both places.
/// Shapes   every gradient: a bucket of `count` elements in the format; scratch: any, kept for the next call;
///          sum: packed_bytes(count, sum_format(format)), aligned to float.
void write_group_sum(absl::Span<const float* const> gradients, PushFormat format, size_t count,
                     std::vector<float>& scratch, void* sum);

/// Sums the gradients of a step group by group, in ascending order of the workers.
/// Threads  One owner.
class GroupSum {
 public:
  /// The sums of the groups in sum_format(format), in their order. A sum of an aggregator is not copied, nor is a lone
  /// gradient in this format. A group of which only a part has come in a sum has several entries.
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
  std::vector<float> unrounded_;
};

}  // namespace gradrail::ps
