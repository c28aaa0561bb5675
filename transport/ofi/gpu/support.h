#pragma once

#include <cstdint>
#include <string>

#include "transport/capabilities.h"

namespace gradrail::transport::ofi {

// GPU memory support of this build and of the libfabric that it runs with, for any provider.

/// Reason why a query of libfabric is unnecessary, or "".
std::string why_no_gpu_memory();

/// Ways of a provider that has FI_HMEM.
GpuTransferSupport gpu_transfers();

/// Version of libfabric's interface to request together with FI_HMEM: structures grew with dma-bufs.
uint32_t gpu_api_version();

}  // namespace gradrail::transport::ofi
