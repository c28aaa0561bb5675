#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "base/gpu_memory.h"
#include "gpu/compute/compute.h"

namespace gradrail::gpu {

/// Exports memory as a dma-buf.
/// Errors  FAILED_PRECONDITION: the device, the driver (CUDA 11.7 and the open kernel module) or the platform has no
///         dma-buf; the text names which. INVALID_ARGUMENT: not memory of this Compute. UNAVAILABLE: the device was
///         lost.
absl::StatusOr<DmaBuf> export_dma_buf(Compute& compute, const void* data, size_t bytes);

/// Makes the driver's copies synchronous for this memory, which NICs will access. Without it a device that reads the
/// memory itself may not get a copy that has already returned.
absl::Status prepare_for_peers(Compute& compute, const void* data);

/// Memory of `compute`, which outlives this, for transports that register it in this way.
/// Errors  FAILED_PRECONDITION: the device, the driver or a missing kernel module forbid it; the text names which and
///         the remedy.
absl::StatusOr<std::unique_ptr<GpuMemorySource>> source_for_nics(Compute& compute, NicGpuTransfer way);

/// Makes writes of a NIC into this device's memory visible to kernels and copies. The call follows the notice of the
/// NIC and precedes any reader there. The number of notices since the last call does not matter.
/// Errors  FAILED_PRECONDITION: the device orders nothing and the driver cannot flush: NICs must not write there.
absl::Status flush_nic_writes(Compute& compute);
/// Whether flush_nic_writes() has something to do on this device: false where it orders by itself.
bool needs_flush(Compute& compute);

}  // namespace gradrail::gpu
