#pragma once

#include <vector>

#include "tools/doctor/check.h"
#include "tools/doctor/facts/gpu_facts.h"
#include "tools/doctor/facts/rdma_facts.h"

namespace gradrail::tools::doctor {

/// The path between GPUs and NICs: links, bridges that send peers' traffic up, address translation.
std::vector<Check> check_pci(System& system, const GpuHost& host, const std::vector<RdmaDevice>& devices);

/// The control word of Access Control Services out of a function's configuration space.
struct AcsControl {
  enum class Found { no_capability, yes, not_readable } found = Found::no_capability;
  uint16_t control = 0;
  /// Requests or completions between devices below go up to the root instead of straight across.
  bool redirects() const { return (control & 0x0c) != 0; }
};
AcsControl read_acs(Tree& tree, const PciDevice& device);

}  // namespace gradrail::tools::doctor
