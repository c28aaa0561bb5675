#pragma once

#include <ucs/type/status.h>

#include <string_view>

#include "absl/status/status.h"

namespace gradrail::transport::ucx {

/// The error of UCX during `doing`, in words, with a remedy.
absl::Status native_error(std::string_view doing, ucs_status_t status);

/// Memory that could not be registered: names the limit on locked memory, which is the cause nearly always.
absl::Status registration_error(size_t bytes, ucs_status_t status);

}  // namespace gradrail::transport::ucx
