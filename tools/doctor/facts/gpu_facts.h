#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/doctor/facts/pci_facts.h"
#include "tools/doctor/system.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {

struct GpuFacts {
  std::string name;              ///< "0000:19:00.0"
  std::optional<PciDevice> pci;  ///< none: only the driver lists it
  // As CUDA says, where it could be asked:
  std::optional<uint64_t> memory_bytes;
  std::optional<bool> dma_buf;
  std::optional<bool> gpu_direct;
};

struct GpuHost {
  std::vector<GpuFacts> gpus;
  std::string module_line;              ///< first of /proc/driver/nvidia/version; "": no module
  std::string module_version;           ///< "580.65.06"
  bool open_module = false;             ///< NVIDIA's open kernel modules
  absl::Status cuda;                    ///< why CUDA cannot be asked; NOT_FOUND: its library is not there
  std::optional<Version> cuda_version;  ///< the newest that the driver speaks
  std::string cuda_version_source;
};

GpuHost read_gpus(System& system);

}  // namespace gradrail::tools::doctor
