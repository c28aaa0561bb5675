#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <type_traits>

namespace gradrail {

/// Parses all of `text`. nullopt: not a number of this type, out of its range, empty, or followed by other characters.
/// No leading space, "+" or "0x"; "-" only for signed types.
template <typename Integer>
requires std::is_integral_v<Integer> std::optional<Integer> parse_number(std::string_view text, int base = 10) {
  Integer value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

/// The same for decimal numbers. "inf", "nan" and exponents count as numbers unless `format` excludes them.
template <typename Float>
requires std::is_floating_point_v<Float> std::optional<Float> parse_number(
    std::string_view text, std::chars_format format = std::chars_format::general) {
  Float value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, format);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

}  // namespace gradrail
