#include "bench/layers/collectives.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "bench/layers/trace_errors.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

constexpr std::string_view kOperatorPrefix = "c10d::";

std::string letters_of(std::string_view text) {
  std::string letters;
  for (const char c : text)
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) letters += static_cast<char>(std::tolower(c));
  return letters;
}

/// 4096 or 4096.0; none for other values.
std::optional<double> whole_number(const nlohmann::json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  return number >= 0 && std::trunc(number) == number ? std::optional(number) : std::nullopt;
}

/// An empty shape is a scalar. None: damage.
std::optional<double> elements_in(const nlohmann::json& shape, int depth) {
  // A list of lists of tensors is the deepest that PyTorch writes.
  if (!shape.is_array() || depth > 3) return std::nullopt;
  double sum = 0.0, product = 1.0;
  for (const nlohmann::json& each : shape) {
    const std::optional<double> count = each.is_array() ? elements_in(each, depth + 1) : whole_number(each);
    if (!count) return std::nullopt;
    sum += each.is_array() ? *count : 0.0;
    product *= each.is_array() ? 0.0 : *count;
  }
  return std::max(sum, product);
}

}  // namespace

bool is_reduction(std::string_view collective) {
  const std::string letters = letters_of(collective);
  return letters == "reduce" || letters.starts_with("allreduce") || letters.starts_with("reducescatter");
}

std::string collective_of_operator(std::string_view name) {
  return name.starts_with(kOperatorPrefix) ? std::string(name.substr(kOperatorPrefix.size())) : "";
}

absl::StatusOr<uint64_t> elements_of(const nlohmann::json& shapes, std::string_view where, std::string_view field) {
  if (shapes.is_array() && shapes.empty()) return 0;
  const std::optional<double> count = elements_in(shapes, 0);
  if (count && *count <= static_cast<double>(kMostElements)) return static_cast<uint64_t>(*count);
  return bad_field(where, field, shown(shapes),
                   fmt::format("lists of numbers from 0 without quotes, at most {} elements in all", kMostElements));
}

absl::StatusOr<uint64_t> element_count(const nlohmann::json& number, std::string_view where, std::string_view field) {
  const std::optional<double> count = whole_number(number);
  if (count && *count <= static_cast<double>(kMostElements)) return static_cast<uint64_t>(*count);
  return bad_field(where, field, shown(number),
                   fmt::format("a whole number from 0 to {}, without quotes", kMostElements));
}

absl::StatusOr<uint64_t> elements_of_operator(std::string_view collective, const nlohmann::json& shapes,
                                              std::string_view where, std::string_view field) {
  const size_t argument = letters_of(collective).starts_with("reducescatter") ? 1 : 0;
  if (!shapes.is_array()) return elements_of(shapes, where, field);
  return argument < shapes.size() ? elements_of(shapes[argument], where, field) : 0;
}

}  // namespace gradrail::bench
