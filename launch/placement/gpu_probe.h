#pragma once

#include <string>
#include <vector>

namespace gradrail::launch {

/// The report of this host's NVIDIA driver.
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

/// Asks the driver in a child process. A process that has used the driver cannot fork tasks that use it, and a driver
/// may hang or crash.
/// Threads  Only the thread of the caller may run.
ProbedGpus probe_gpus();

}  // namespace gradrail::launch
