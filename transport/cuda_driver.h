#pragma once

namespace gradrail::transport {

/// Whether this host has CUDA's driver. Libraries are asked for GPU memory only then: some take slower paths for host
/// memory once they were.
bool has_cuda_driver();

}  // namespace gradrail::transport
