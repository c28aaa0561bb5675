#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/plan/plan.h"

namespace gradrail::topology::planning {

/// The resources of the machine that the flags allow, and why others are excluded.
struct AvailableResources {
  CpuSet cpus;                       ///< never empty
  CpuSet closed, outside, reserved;  ///< cpus left out by the cpuset; by --cores; kept free
  std::vector<int> gpus;             ///< sorted by assignment
  std::vector<std::string> gpu_out;  ///< reason why a GPU is out, indexed as Machine::gpus; empty: it is in
  std::vector<std::string> nic_out;  ///< likewise
  std::vector<int> nic_gbit;         ///< likewise: usable bandwidth in whole Gb/s; not recorded: as the fastest
  int fastest_gbit = 0;              ///< speed of the NICs that are in; 0: no bandwidth is recorded
  std::vector<std::string> notes;
};

/// Reason why no GPU of this vendor, which is not NVIDIA, can be used.
std::string why_unsupported(Vendor vendor);

/// The smaller one of the port's rate and the PCI link; 0: neither is recorded.
int usable_gbit(const Nic& nic);

/// Errors  INVALID_ARGUMENT: as plan().
absl::StatusOr<AvailableResources> read_available_resources(const Machine& machine, const Request& request);

/// Numbers within bounds, no process twice.
absl::Status check_request(const Request& request);

/// Devices that the words of --gpu and --nic name, in their order. A GPU may be named again: towers share it then.
/// Errors  INVALID_ARGUMENT: a word names nothing, or one NIC is named twice.
absl::StatusOr<std::vector<int>> find_gpus(const Machine& machine, const std::vector<std::string>& words);
absl::StatusOr<std::vector<int>> find_nics(const Machine& machine, const std::vector<std::string>& words);

}  // namespace gradrail::topology::planning
