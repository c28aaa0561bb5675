#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "fmt/format.h"

namespace gradrail::tools {

/// As fmt::print(), which throws if the output cannot be written. A closed terminal or a full disk does not end a run.
template <typename... Values>
void print_text(std::FILE* out, fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  [[maybe_unused]] const size_t written = std::fwrite(text.data(), 1, text.size(), out);
}

template <typename... Values>
void print_text(fmt::format_string<Values...> format, Values&&... values) {
  print_text(stdout, format, std::forward<Values>(values)...);
}

}  // namespace gradrail::tools
