#pragma once

#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/facts/gpu_facts.h"

namespace gradrail::tools::doctor {

/// The driver, the two ways by which a NIC reaches GPU memory, the window through which it does, CUDA's versions.
std::vector<Check> check_gpus(System& system, const GpuHost& host);

/// The kernel module, and the driver to which each GPU is bound.
Check check_gpu_driver(const GpuHost& host);
/// nvidia_peermem: its lack is an error only if dma-buf does not work either.
Check check_peer_memory(System& system, const GpuHost& host);
/// dma-buf needs Linux 5.12 and NVIDIA's open modules. CUDA's own answer is used where it can be asked.
Check check_dma_buf(System& system, const GpuHost& host);
/// Warns if the window to GPU memory is smaller than the memory.
Check check_bar1(System& system, const GpuHost& host);
/// The newest CUDA runtime on disk against the version that the driver supports.
Check check_cuda_versions(System& system, const GpuHost& host);
/// Never worse than "warning" without the library: towers are then averaged on the host.
Check check_nccl(System& system, const GpuHost& host);

}  // namespace gradrail::tools::doctor
