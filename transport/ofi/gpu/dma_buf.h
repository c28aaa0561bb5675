#pragma once

#include <rdma/fi_domain.h>

#include <cstdint>

#include "base/gpu_memory.h"
#include "base/memory.h"

namespace gradrail::transport::ofi {

/// The first version of libfabric with FI_MR_DMABUF.
inline constexpr uint32_t kDmaBufVersion = FI_VERSION(1, 20);

/// Whether the libfabric headers of this build have FI_MR_DMABUF. CMake selects dma_buf.cc or dma_buf_none.cc.
bool builds_dma_bufs();

/// Registers a dma-buf with fi_mr_regattr() and returns the code of libfabric. Peers address the region in the same way
/// as memory that is registered by its address.
int register_dma_buf(fid_domain* domain, const DmaBuf& dma_buf, const MemorySpan& memory, uint64_t access, uint64_t key,
                     fid_mr** mr);

}  // namespace gradrail::transport::ofi
