#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace gradrail::transport::tcp {

/// What an errno of the socket calls means to a user: `tcp: connect to 10.0.0.1:2223: Connection refused (hint)`.
/// `doing` reads as the start of that sentence.
absl::Status native_error(std::string_view doing, int error);

/// A status' message as the standard's string_view (Debian's absl has its own).
inline std::string_view words(const absl::Status& status) { return {status.message().data(), status.message().size()}; }

}  // namespace gradrail::transport::tcp
