// This file is built with headers of libfabric before 1.20.
#include <rdma/fi_errno.h>

#include "transport/ofi/gpu/dma_buf.h"

namespace gradrail::transport::ofi {

bool builds_dma_bufs() { return false; }

int register_dma_buf(fid_domain*, const DmaBuf&, const MemorySpan&, uint64_t, uint64_t, fid_mr**) { return -FI_ENOSYS; }

}  // namespace gradrail::transport::ofi
