#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "base/memory.h"

namespace gradrail::transport::ofi {

/// Explains an error of libfabric to a user: `ofi: put to 10.0.0.1:2223: Input/output error: transport retry counter
/// exceeded (the peer or the path to it is gone)`. `error` is positive, as in FI_EIO; `detail` is the provider's text,
/// or "". `doing` is the start of the sentence.
absl::Status native_error(std::string_view doing, int error, std::string_view detail = "");

/// The same for a registration. Its usual cause is the limit on locked memory: the text has limit, bytes and remedies.
absl::Status registration_error(size_t bytes, int error);
/// The same for GPU memory and the device of this name.
absl::Status gpu_registration_error(const MemorySpan& memory, std::string_view device, int error);

}  // namespace gradrail::transport::ofi
