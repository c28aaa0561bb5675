// This file is built with headers of libfabric 1.20 and later.
#include "transport/ofi/gpu/dma_buf.h"

namespace gradrail::transport::ofi {

bool builds_dma_bufs() { return true; }

int register_dma_buf(fid_domain* domain, const DmaBuf& dma_buf, const MemorySpan& memory, uint64_t access, uint64_t key,
                     fid_mr** mr) {
  fi_mr_dmabuf where{};
  where.fd = dma_buf.fd.get();
  where.offset = dma_buf.offset;
  where.len = memory.bytes;
  // The address of the descriptor's first byte. The region's own address, which peers may use, is offset bytes further.
  where.base_addr = memory.data - dma_buf.offset;
  fi_mr_attr attributes{};
  attributes.dmabuf = &where;
  attributes.iov_count = 1;
  attributes.access = access;
  attributes.requested_key = key;
  attributes.iface = FI_HMEM_CUDA;
  attributes.device.cuda = memory.gpu->ordinal();
  return fi_mr_regattr(domain, &attributes, FI_MR_DMABUF, mr);
}

}  // namespace gradrail::transport::ofi
