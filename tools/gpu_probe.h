#pragma once

#include <string>
#include <vector>

namespace gradrail::tools {

/// What the NVIDIA driver of this host says it has.
struct ProbedGpu {
  int ordinal = 0;  ///< as the driver counts, CUDA_VISIBLE_DEVICES respected
  std::string pci_address;
  std::string name;
};
struct ProbedGpus {
  std::vector<ProbedGpu> gpus;
  std::string why_none;        ///< "" when there are some
  bool driver_failed = false;  ///< there is a driver, and it does not work
};

/// Asks in a process of its own: who has spoken to the driver cannot fork tasks that use it, and a driver that hangs or
/// crashes takes nobody along. Call before the process has any thread.
ProbedGpus probe_gpus();

}  // namespace gradrail::tools
