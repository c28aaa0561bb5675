#include "base/gpu_memory.h"

#include <unistd.h>

namespace gradrail {

const char* name_of(GpuDirect way) { return way == GpuDirect::dma_buf ? "dmabuf" : "peermem"; }

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace gradrail
