#pragma once

#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include "CLI/CLI.hpp"
#include "base/parse_number.h"
#include "fmt/format.h"

namespace gradrail {

/// Permits decimal numbers from `least` to `most` as the value of a flag. CLI::Range accepts nan, takes -1 for 2^64-1
/// and reads 010 as 8. The help shows the range as "0..64".
/// Use  option->transform(NumberIn(0u, 64u)): the value is rewritten, so that CLI11 reads no octal number.
template <typename Number>
class NumberIn : public CLI::Validator {
 public:
  explicit NumberIn(Number least = std::numeric_limits<Number>::lowest(),
                    Number most = std::numeric_limits<Number>::max())
      : CLI::Validator([least, most](std::string& text) { return check(text, least, most); }, range_text(least, most)) {
  }

 private:
  static constexpr bool kWhole = std::is_integral_v<Number>;

  static std::string check(std::string& text, Number least, Number most) {
    const std::optional<Number> value = parse_number<Number>(text);
    if (!value || !(*value >= least && *value <= most)) {  // the comparison with nan is false
      return fmt::format("'{}' is not a {} from {} to {}", text, kWhole ? "whole number" : "number", least, most);
    }
    if constexpr (kWhole) text = std::to_string(*value);
    return "";
  }

  static std::string range_text(Number least, Number most) {
    if (most < std::numeric_limits<Number>::max()) return fmt::format("{}..{}", least, most);
    return least > std::numeric_limits<Number>::lowest() && least != Number{} ? fmt::format("{}..max", least) : "";
  }
};

}  // namespace gradrail
