#include "ps/optimizer/group_sum.h"

#include "base/check.h"
#include "ps/optimizer/optimizer.h"

namespace gradrail::ps {

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
  if (group_.size() == 1 && format == PushFormat::fp32) {
    sums_.push_back(group_.front());
  } else {
    if (scratch_used_ == scratch_.size()) scratch_.emplace_back();
    std::vector<float>& scratch = scratch_[scratch_used_++];
    if (scratch.size() < count) scratch.resize(count);
    sum_of(group_, format, absl::MakeSpan(scratch).first(count));
    sums_.push_back(scratch.data());
  }
  group_.clear();
}

}  // namespace gradrail::ps
