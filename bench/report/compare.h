#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::bench {

/// Second over first, from the rounds of both.
struct Ratio {
  // Above 1 the second run is slower. The interval contains the ratio.
  double ratio = 1.0;
  double low = 1.0;  ///< of the confidence interval
  double high = 1.0;
  bool significant() const { return low > 1.0 || high < 1.0; }
};

/// The rounds' logarithms by Welch's test, at a level of 5 % for all `comparisons` together (Bonferroni). Of twenty
/// pairs of equal runs one shows a difference in some row. Fewer than two rounds say nothing: an interval from 0 to
/// infinity. Source  B. L. Welch, The generalization of Student's problem, Biometrika 34 (1947).
/// Units  any, the same in both; each value above 0.
Ratio ratio_of(const std::vector<double>& first, const std::vector<double>& second, size_t comparisons);

/// Prints the rows that both files have, with ratios of their times; the number of rows that differ.
/// Returns 0: no significant difference. 1: some row differs, or is in one file only.
/// Errors  NOT_FOUND, DATA_LOSS: not a file of `-J`. INVALID_ARGUMENT: machines or settings differ and `unlike` is not
///         set: says what differs.
absl::StatusOr<int> compare_runs(const std::string& first, const std::string& second, bool unlike);

}  // namespace gradrail::bench
