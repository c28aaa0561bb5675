#include "bench/predict/sweep.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::bench::predict {
namespace {

constexpr size_t kMostValues = 1000;
/// Sums of decimal steps may pass the end by their rounding.
constexpr double kRounding = 1e-9;

absl::Status wrong(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(fmt::format("--sweep {}: {}", escaped(text), why));
}

absl::Status too_many(const std::string& text) {
  return wrong(text, fmt::format("it has more than {} values; give a larger step", kMostValues));
}

/// The texts between commas. The mode quorum:3,grace=5 has a comma of its own.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> values;
  for (std::string& part : std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipEmpty()))) {
    if (!values.empty() && part.find('=') != std::string::npos) {
      values.back() += ',' + part;
    } else {
      values.push_back(std::move(part));
    }
  }
  return values;
}

}  // namespace

absl::StatusOr<Sweep> parse_sweep(const std::string& text) {
  const size_t equals = text.find('=');
  Sweep sweep{.name = text.substr(0, equals), .values = {}};
  const std::string values = equals == std::string::npos ? "" : text.substr(equals + 1);
  const std::vector<std::string> parts = absl::StrSplit(values, ':');
  // Modes such as ssp:2 have a colon as well.
  if (parts.size() != 3 || parts[2].empty() || (parts[2][0] != '*' && parts[2][0] != '+')) {
    sweep.values = split_values(values);
    if (sweep.name.empty() || sweep.values.empty())
      return wrong(text, "must be NAME=FIRST:LAST:*FACTOR, NAME=FIRST:LAST:+DIFFERENCE or NAME=VALUE,VALUE,…");
    if (sweep.values.size() > kMostValues) return too_many(text);
    return sweep;
  }
  const std::optional<double> first = parse_number<double>(parts[0]);
  const std::optional<double> last = parse_number<double>(parts[1]);
  const std::optional<double> by = parse_number<double>(parts[2].substr(1));
  const bool multiplies = parts[2][0] == '*';
  // Written so that NaN is refused.
  if (!first || !last || !(*first >= 0) || !(*last >= *first))
    return wrong(text, fmt::format("'{}' and '{}' must be numbers with 0 <= FIRST <= LAST", escaped(parts[0]),
                                   escaped(parts[1])));
  if (!by || !(multiplies ? *by > 1 : *by > 0))
    return wrong(text, fmt::format("'{}' must be {}", escaped(parts[2]),
                                   multiplies ? "* and a number above 1" : "+ and a number above 0"));
  if (multiplies && *first == 0) return wrong(text, "0 stays 0 with each factor; give another FIRST, or +DIFFERENCE");
  for (uint32_t i = 0;; ++i) {
    const double value = multiplies ? *first * std::pow(*by, i) : *first + *by * i;
    if (value > *last * (1 + kRounding)) break;
    if (sweep.values.size() == kMostValues) return too_many(text);
    sweep.values.push_back(fmt::format("{:.10g}", value));
  }
  return sweep;
}

}  // namespace gradrail::bench::predict
