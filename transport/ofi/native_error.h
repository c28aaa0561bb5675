#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "base/memory.h"

namespace gradrail::transport::ofi {

/// What an error of libfabric means to a user: `ofi: put to 10.0.0.1:2223: Input/output error: transport retry counter
/// exceeded (the peer or the path to it is gone)`. `error` is positive, as in FI_EIO; `detail` is what the provider
/// adds, or "". `doing` reads as the start of the sentence.
absl::Status native_error(std::string_view doing, int error, std::string_view detail = "");

/// The same for a registration, whose usual cause is the limit on locked memory: names limit, bytes and remedies.
absl::Status registration_error(size_t bytes, int error);
/// Of GPU memory by the device of this name.
absl::Status gpu_registration_error(const MemorySpan& memory, std::string_view device, int error);

}  // namespace gradrail::transport::ofi
