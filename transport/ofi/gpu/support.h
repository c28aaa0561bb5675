#pragma once

#include <cstdint>
#include <string>

#include "transport/capabilities.h"

namespace gradrail::transport::ofi {

// GPU memory support of this build and of the libfabric that it runs with, for any provider.

/// Why libfabric need not even be asked for it, or "".
std::string why_no_gpu_memory();

/// With a provider that has FI_HMEM.
GpuTransferSupport gpu_transfers();

/// The version of libfabric's interface to ask for together with FI_HMEM: structures grew with dma-bufs.
uint32_t gpu_api_version();

}  // namespace gradrail::transport::ofi
