#pragma once

#include <string>

#include "absl/status/status.h"

namespace gradrail::bench {

/// Whether --bind-host is an address that tasks here can listen at; "" is.
/// Errors  FAILED_PRECONDITION: it is not of this host; lists those that are.
absl::Status check_bind_host(const std::string& host);

}  // namespace gradrail::bench
