#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace gradrail::transport::shm {

/// The one place where errno becomes a status of ours, with the remedy where there is a usual one.
/// `operation` names the call and what it was for: "connect to gradrail-1f".
absl::Status from_errno(int error, std::string_view operation);

}  // namespace gradrail::transport::shm
