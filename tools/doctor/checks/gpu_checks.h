#pragma once

#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/facts/gpu_facts.h"

namespace gradrail::tools::doctor {

/// The driver, the two ways by which a NIC reaches GPU memory, the window through which it does, CUDA's versions.
std::vector<Check> check_gpus(System& system, const GpuHost& host);

Check check_gpu_driver(const GpuHost& host);
Check check_peer_memory(System& system, const GpuHost& host);
Check check_dma_buf(System& system, const GpuHost& host);
Check check_bar1(System& system, const GpuHost& host);
Check check_cuda_versions(System& system, const GpuHost& host);
Check check_nccl(System& system, const GpuHost& host);

}  // namespace gradrail::tools::doctor
