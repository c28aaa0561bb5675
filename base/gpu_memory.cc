#include "base/gpu_memory.h"

#include <unistd.h>

namespace gradrail {

const char* name_of(NicGpuTransfer way) { return way == NicGpuTransfer::dma_buf ? "dmabuf" : "peermem"; }

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace gradrail
