#include "ps/optimizer/group_sum.h"

#include "base/check.h"
#include "ps/optimizer/optimizer.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/push_format.h"

namespace gradrail::ps {

void write_group_sum(absl::Span<const float* const> gradients, PushFormat format, size_t count,
                     std::vector<float>& scratch, void* sum) {
  if (sum_format(format) == PushFormat::fp32) return sum_of(gradients, format, {static_cast<float*>(sum), count});
  if (scratch.size() < count) scratch.resize(count);
  const absl::Span<float> unrounded = absl::MakeSpan(scratch).first(count);
  sum_of(gradients, format, unrounded);
  round_to_bf16(unrounded, static_cast<uint16_t*>(sum));
}

absl::Span<const float* const> GroupSum::sum(absl::Span<const GradientTerm> terms, uint32_t group_size,
                                             PushFormat format, size_t count) {
  GRADRAIL_CHECK(group_size > 0 && group_.empty());
  sums_.clear();
  scratch_used_ = 0;
  uint32_t group = 0;
  for (const GradientTerm& term : terms) {
    if (term.worker / group_size != group) end_group(format, count);
    group = term.worker / group_size;
    if (term.is_sum) {
      sums_.push_back(term.values);
    } else {
      group_.push_back(term.values);
    }
  }
  end_group(format, count);
  return sums_;
}

void GroupSum::end_group(PushFormat format, size_t count) {
  if (group_.empty()) return;
  if (group_.size() == 1 && format == sum_format(format)) {
    sums_.push_back(group_.front());
  } else {
    if (scratch_used_ == scratch_.size()) scratch_.emplace_back();
    std::vector<float>& scratch = scratch_[scratch_used_++];
    if (scratch.size() < count) scratch.resize(count);
    write_group_sum(group_, format, count, unrounded_, scratch.data());
    sums_.push_back(scratch.data());
  }
  group_.clear();
}

}  // namespace gradrail::ps
