#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace gradrail::transport::tcp {

/// Explains an errno of the socket calls to a user: `tcp: connect to 10.0.0.1:2223: Connection refused (hint)`. `doing`
/// is the start of that sentence.
absl::Status native_error(std::string_view doing, int error);

}  // namespace gradrail::transport::tcp
