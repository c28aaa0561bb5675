#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradrail::tools::doctor {

/// Fit for a terminal: whatever is no printable ASCII becomes '?'.
std::string clean(std::string_view text);
/// Returns printable text, cut where it gets longer than a line, for the contents of files.
std::string printable(std::string_view text);

std::string_view trimmed(std::string_view text);
std::vector<std::string> lines_of(std::string_view text);
/// Words between runs of spaces and tabs.
std::vector<std::string> words_of(std::string_view text);

/// The whole text as a number, nothing before or behind it but spaces. Base 16 takes a "0x" in front.
std::optional<uint64_t> number_of(std::string_view text, int base = 10);

/// "64 KiB", "8 MiB", "128 GiB".
std::string size_text(uint64_t bytes);

}  // namespace gradrail::tools::doctor
