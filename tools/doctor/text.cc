#include "tools/doctor/text.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_split.h"
#include "base/parse_number.h"
#include "fmt/format.h"

namespace gradrail::tools::doctor {
namespace {

/// More than any line that people are to read.
constexpr size_t kLongest = 160;

bool is_printable(char c) { return c >= ' ' && c <= '~'; }

}  // namespace

// The text of devices and files reaches a terminal: an escape sequence in a name must not be executed by it.
std::string clean(std::string_view text) {
  std::string cleaned(text);
  std::replace_if(
      cleaned.begin(), cleaned.end(), [](char c) { return !is_printable(c); }, '?');
  return cleaned;
}

std::string printable(std::string_view text) {
  return clean(text.substr(0, kLongest)) + (text.size() > kLongest ? "..." : "");
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string> lines_of(std::string_view text) {
  return absl::StrSplit(absl::string_view(text.data(), text.size()), '\n', absl::SkipEmpty());
}

std::vector<std::string> words_of(std::string_view text) {
  return absl::StrSplit(absl::string_view(text.data(), text.size()), absl::ByAnyChar(" \t\n\r"), absl::SkipEmpty());
}

// Exactly a number or nothing: "max" of a cgroup and "-1" of an older one both mean "no limit" to the callers.
std::optional<uint64_t> number_of(std::string_view text, int base) {
  text = trimmed(text);
  if (base == 16 && text.substr(0, 2) == "0x") text.remove_prefix(2);
  return parse_number<uint64_t>(text, base);
}

std::string size_text(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

}  // namespace gradrail::tools::doctor
