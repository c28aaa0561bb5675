#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "transport/context.h"
#include "transport/registry.h"

namespace gradrail::transport::loopback {

/// Contexts of one process, joined by names (listen chooses one for the address ""). Deterministic. The bytes of a put
/// move when the *peer* polls, as late as the interface allows. So a caller that reuses memory too early is detected.
absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);

/// Adds the transport "loopback" to the list of transports, once. "auto" excludes it.
void add_to_transports();

}  // namespace gradrail::transport::loopback
