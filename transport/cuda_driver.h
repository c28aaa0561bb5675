#pragma once

namespace gradrail::transport {

/// Whether this host has CUDA's driver. Only then may libraries enable GPU memory: some take slower paths for host
/// memory afterwards.
bool has_cuda_driver();

}  // namespace gradrail::transport
