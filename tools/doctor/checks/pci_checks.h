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
  /// not_readable: only root may read more than the first 64 bytes.
  enum class Found { no_capability, yes, not_readable } found = Found::no_capability;
  uint16_t control = 0;
  /// Requests or completions between devices below go up to the root instead of straight across.
  bool redirects() const { return (control & 0x0c) != 0; }
};
/// Source  PCI Express Base Specification: the list of extended capabilities begins at 0x100.
AcsControl read_acs(Tree& tree, const PciDevice& device);

}  // namespace gradrail::tools::doctor
