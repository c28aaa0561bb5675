#include "base/gpu_memory.h"

namespace gradrail {

const char* name_of(NicGpuTransfer way) { return way == NicGpuTransfer::dma_buf ? "dmabuf" : "peermem"; }

}  // namespace gradrail
