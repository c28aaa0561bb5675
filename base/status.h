#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Passes an error on to the caller.
#define GRADRAIL_RETURN_IF_ERROR(expression)                                \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

namespace gradrail {

/// The status's words. Debian's absl has a string_view of its own, which fmt does not know.
inline std::string_view message_of(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace gradrail
