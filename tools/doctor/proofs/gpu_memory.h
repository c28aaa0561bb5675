#pragma once

#include <string>

#include "base/gpu_memory.h"
#include "bench/put/transport.h"

namespace gradrail::tools::doctor {

/// Makes memory of the GPU at a PCI address, which a transport registers in this way. The GPU itself copies it: the
/// compared bytes are those that its kernels read.
/// Errors  UNIMPLEMENTED: the transport takes memory of no GPU in this way, and why.
bench::MakePutMemory gpu_memory(const std::string& pci_address, NicGpuTransfer way);

}  // namespace gradrail::tools::doctor
