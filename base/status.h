#pragma once

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

/// The status's words. Debian's absl has a string_view of its own, which fmt does not know.
inline std::string_view message_of(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace gradrail
