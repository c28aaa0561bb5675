#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/doctor/tree.h"

namespace gradrail::tools::doctor {

/// A PCI function as the kernel lists it.
struct PciDevice {
  std::string address;  ///< "0000:19:00.0"
  std::string folder;   ///< /sys/bus/pci/devices/0000:19:00.0
  uint32_t vendor = 0;
  uint32_t device = 0;
  uint32_t device_class = 0;  ///< 0x030200: class, subclass, programming interface
  std::string driver;         ///< "": none is bound
  /// The bridges between it and the root, the root's first; addresses.
  std::vector<std::string> bridges;

  bool is_network() const { return device_class >> 16 == 0x02; }
  bool is_nvidia_gpu() const { return vendor == 0x10de && device_class >> 16 == 0x03; }
};

/// In the order of their addresses.
std::vector<PciDevice> read_pci_devices(Tree& tree);

}  // namespace gradrail::tools::doctor
