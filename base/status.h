#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Passes an error on to the caller.
#define GRADRAIL_RETURN_IF_ERROR(expression)                                \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

/// Assigns the value of a StatusOr to `declaration`, or passes its error on to the caller. It is two statements: the
/// body of an `if` needs braces. A type with a comma outside parentheses is written `auto`.
#define GRADRAIL_ASSIGN_OR_RETURN(declaration, ...) \
  GRADRAIL_ASSIGN_OR_RETURN_NAMED(GRADRAIL_JOIN(result_, __LINE__), declaration, (__VA_ARGS__))
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot have parentheses; the expression has them already.
#define GRADRAIL_ASSIGN_OR_RETURN_NAMED(result, declaration, expression) \
  auto result = expression;                                              \
  if (!result.ok()) return std::move(result).status();                   \
  declaration = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)
#define GRADRAIL_JOIN(first, second) GRADRAIL_JOIN_EXPANDED(first, second)
#define GRADRAIL_JOIN_EXPANDED(first, second) first##second

namespace gradrail {

/// Text of the status. Debian's absl has its own string_view, which fmt does not support.
inline std::string_view message_of(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

/// ASCII control characters: a terminal executes some of them, and a newline would split a message.
inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// The text with control characters as \x01.
inline std::string escaped(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (is_control(c)) {
      out.append({'\\', 'x', kDigits[static_cast<unsigned char>(c) / 16], kDigits[static_cast<unsigned char>(c) % 16]});
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace gradrail
