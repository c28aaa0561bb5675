#pragma once

#include <rdma/fi_domain.h>

#include <cstdint>

#include "base/gpu_memory.h"
#include "base/memory.h"

namespace gradrail::transport::ofi {

/// The libfabric that brought FI_MR_DMABUF.
inline constexpr uint32_t kDmaBufVersion = FI_VERSION(1, 20);

/// Whether the headers of this build have it: dma_buf.cc or dma_buf_none.cc.
bool builds_dma_bufs();

/// fi_mr_regattr of a dma-buf; what libfabric answers. Peers address it as they do memory that is registered by its
/// address.
int register_dma_buf(fid_domain* domain, const DmaBuf& dma_buf, const MemorySpan& memory, uint64_t access, uint64_t key,
                     fid_mr** mr);

}  // namespace gradrail::transport::ofi
