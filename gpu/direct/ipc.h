#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu/compute/compute.h"

namespace gradrail::gpu {

/// Exports a run of device memory so that another process on the same host can map it. The result is opaque bytes for a
/// message between the processes. The driver exports whole allocations: the receiver can access the complete allocation
/// of the run. The driver may put small allocations of a process (below 2 MiB) into one. The memory must outlive every
/// mapping.
/// Errors  INVALID_ARGUMENT: not memory of this Compute. FAILED_PRECONDITION: memory of the host, or of a kind that the
///         driver does not export.
absl::StatusOr<std::string> export_memory(Compute& compute, const void* data, size_t bytes);

/// Maps another process' memory into this one's address space, until the object ends, for the operations of `compute`.
/// Errors  INVALID_ARGUMENT: not what export_memory() made. FAILED_PRECONDITION: it is this process' own, or of a GPU
///         that is invisible (CUDA_VISIBLE_DEVICES) or unreachable to it; the text names which. UNAVAILABLE: the device
///         was lost.
absl::StatusOr<std::unique_ptr<Memory>> map_memory(Compute& compute, std::string_view exported);

}  // namespace gradrail::gpu
