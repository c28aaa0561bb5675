#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "base/gpu_memory.h"
#include "gpu/compute.h"

namespace gradrail::gpu {

/// Errors  FAILED_PRECONDITION: the device, the driver (CUDA 11.7 and the open kernel module) or the platform has no
///         dma-buf; says so. INVALID_ARGUMENT: not memory of this Compute. UNAVAILABLE: the device was lost.
absl::StatusOr<DmaBuf> export_dma_buf(Compute& compute, const void* data, size_t bytes);

/// Makes copies of the driver's wait for each other where they touch this memory: without it a device that reads the
/// memory itself may see it before a copy to it, though the call came back. For memory that NICs are to reach.
absl::Status prepare_for_peers(Compute& compute, const void* data);

/// Memory of `compute`, which outlives this, for transports to register in this way.
/// Errors  FAILED_PRECONDITION: the device, the driver or a missing kernel module forbid it; says which and the remedy.
absl::StatusOr<std::unique_ptr<GpuMemorySource>> source_for_nics(Compute& compute, GpuDirect way);

}  // namespace gradrail::gpu
