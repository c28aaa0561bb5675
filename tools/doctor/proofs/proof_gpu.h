#pragma once

#include <string>

#include "base/gpu_memory.h"
#include "tools/doctor/proofs/proof_pair.h"

namespace gradrail::tools::doctor {

/// Memory of the GPU at a PCI address, for a transport to register in this way. Copies go through the GPU itself: what
/// is compared is what its kernels see.
/// Errors  UNIMPLEMENTED: the transport takes no GPU memory in this way, and why; whatever GPU it is.
MakeMemory gpu_memory(const std::string& pci_address, NicGpuTransfer way);

}  // namespace gradrail::tools::doctor
