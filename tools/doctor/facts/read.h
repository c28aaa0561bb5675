#pragma once

#include <string>
#include <vector>

#include "tools/doctor/facts/facts.h"
#include "tools/doctor/system.h"

namespace gradrail::tools::doctor {

/// Reads everything but the servers. A separate process queries each library and each driver.
Machine read_machine(const System& system);

/// The PCI functions of the kernel's list, in the order of their addresses.
struct PciDevice {
  std::string address;  ///< "0000:19:00.0"
  std::string folder;   ///< /sys/bus/pci/devices/0000:19:00.0
  uint32_t vendor = 0;
  uint32_t device_class = 0;         ///< 0x030200: class, subclass, programming interface
  std::string driver;                ///< "": none is bound
  std::vector<std::string> bridges;  ///< addresses of the bridges above it, the nearest to the root first

  bool is_network() const { return device_class >> 16 == 0x02; }
  bool is_nvidia_gpu() const { return vendor == 0x10de && device_class >> 16 == 0x03; }
};
std::vector<PciDevice> read_pci_devices(const System& system);

// The parts of read_machine(), in this order.
void read_host(const System& system, Machine& machine);
void read_rdma(const System& system, const std::vector<PciDevice>& functions, Machine& machine);
void read_gpus(const System& system, const std::vector<PciDevice>& functions, Machine& machine);
void read_pci(const System& system, const std::vector<PciDevice>& functions, Machine& machine);

/// Tries the control port of each parameter server ("host:port") over TCP, as a worker does before it joins: workers
/// listen nowhere.
void read_servers(const std::vector<std::string>& servers, Machine& machine);
/// Facts of one attempt: "connected", or one of "unresolved", "refused", "no_answer", "small_packets" and "unreached"
/// with the error behind it.
Facts server_facts(const std::string& server, const std::string& result);

}  // namespace gradrail::tools::doctor
