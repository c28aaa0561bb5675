#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "gpu/driver/driver.h"

namespace gradrail::gpu {

/// Whether no work of this process on the device can succeed any more: the device was lost, or a kernel broke the
/// context. Such an error ends the use of the device in this process; all others are those of one call.
bool is_lasting(cuda::Result result);

/// The loss of a device of this process: UNAVAILABLE with a mark. A restart of the process may help, and no other task
/// can remedy it. A lost ps has the same code without the mark.
absl::Status device_loss(std::string_view cause);
bool is_device_loss(const absl::Status& status);

/// Converts the driver's result: device_loss() if the device itself was lost, RESOURCE_EXHAUSTED for memory, INTERNAL
/// for the rest. The text contains `device` and `operation`: "GPU 0 (…): cuMemAlloc of 12 bytes: CUDA_ERROR_…". OK for
/// kSuccess, so that callers can return the result of a call directly.
absl::Status to_status(const Driver& driver, cuda::Result result, std::string_view device, std::string_view operation);

/// A driver that is installed and does not start: FAILED_PRECONDITION with the remedy.
absl::Status start_error(const Driver& driver, cuda::Result result);

}  // namespace gradrail::gpu
