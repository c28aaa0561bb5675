#include "bench/predict/sweep.h"

#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/strings/str_split.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::bench::predict {
namespace {

constexpr size_t kMostValues = 1000;
/// Sums of decimal steps may pass the end by their rounding.
constexpr double kRounding = 1e-9;

absl::Status wrong(const std::string& text) {
  return absl::InvalidArgumentError(fmt::format(
      "--sweep {}: must be NAME=FIRST:LAST:*FACTOR, NAME=FIRST:LAST:+DIFFERENCE or NAME=VALUE,VALUE,… with at most {} "
      "values",
      escaped(text), kMostValues));
}

}  // namespace

absl::StatusOr<Sweep> parse_sweep(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) return wrong(text);
  Sweep sweep{.name = text.substr(0, equals), .values = {}};
  const std::string values = text.substr(equals + 1);
  const std::vector<std::string> parts = absl::StrSplit(values, ':');
  // Modes such as ssp:2 have a colon as well.
  if (parts.size() != 3 || parts[2].empty() || (parts[2][0] != '*' && parts[2][0] != '+')) {
    sweep.values = absl::StrSplit(values, ',', absl::SkipEmpty());
    return sweep.values.empty() || sweep.values.size() > kMostValues ? absl::StatusOr<Sweep>(wrong(text)) : sweep;
  }
  const std::optional<double> first = parse_number<double>(parts[0]);
  const std::optional<double> last = parse_number<double>(parts[1]);
  const std::optional<double> by = parse_number<double>(parts[2].substr(1));
  const bool multiplies = parts[2][0] == '*';
  // Written so that NaN is refused.
  if (!first || !last || !by || !(*first >= 0) || !(*last >= *first) || !(multiplies ? *by > 1 : *by > 0))
    return wrong(text);
  if (multiplies && *first == 0)
    return absl::InvalidArgumentError(
        fmt::format("--sweep {}: 0 stays 0 with each factor; give another FIRST, or +DIFFERENCE", escaped(text)));
  for (uint32_t i = 0;; ++i) {
    const double value = multiplies ? *first * std::pow(*by, i) : *first + *by * i;
    if (value > *last * (1 + kRounding)) break;
    if (sweep.values.size() == kMostValues) return wrong(text);
    sweep.values.push_back(fmt::format("{:.10g}", value));
  }
  return sweep;
}

}  // namespace gradrail::bench::predict
