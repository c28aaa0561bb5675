#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "topology/cpu_set.h"

namespace gradrail::topology {

// A machine in the form for the planner: plain values, no hwloc types. Objects refer to each other by index into the
// vectors of Machine; -1 means "none recorded". Indices follow hwloc's logical order: adjacent indices are near each
// other.

struct Package {
  int os_index = -1;
  std::string model;  ///< model of the processor; may be empty
};

/// Memory of one locality. POWER has nodes without cpus (GPU memory): they are listed, but no thread is local to them.
struct NumaNode {
  int os_index = -1;
  int package = -1;
  CpuSet cpus;
  uint64_t memory_bytes = 0;  ///< 0: not recorded
  bool allowed = true;        ///< this process may allocate here
};

/// A physical core and its SMT siblings, in the order of the system.
struct Core {
  int package = -1;
  int numa_node = -1;
  std::vector<int> cpus;     ///< all of them
  std::vector<int> allowed;  ///< cpus that this process may use; empty: the core is closed to it
  int efficiency = 0;        ///< class of a core of a hybrid processor: more is faster; all equal elsewhere
};

/// "domain:bus:device.function".
struct PciAddress {
  uint32_t domain = 0;
  uint8_t bus = 0;
  uint8_t device = 0;
  uint8_t function = 0;

  std::string to_string() const;  ///< 0000:03:00.0
  auto operator<=>(const PciAddress&) const = default;
};

/// A node of the PCI tree: a host bridge (parent -1) or a PCI-PCI bridge below one.
struct Bridge {
  int parent = -1;
  bool host = false;
  PciAddress address;  ///< address of a PCI-PCI bridge; for a host bridge the first bus below it
  CpuSet cpus;         ///< near cpus of a host bridge; empty: not recorded, or the whole machine
};

/// Position of a PCI device.
struct PciPlace {
  PciAddress address;
  int bridge = -1;     ///< the one right above it
  int numa_node = -1;  ///< -1: unknown, or of several nodes
  int package = -1;    ///< -1: unknown, or of several packages
  CpuSet cpus;         ///< near it; empty: not recorded
};

enum class Vendor { nvidia, amd, intel, other };

/// A GPU that can compute: display chips of servers are left out.
struct Gpu {
  int index = -1;    ///< number for users: CUDA's if recorded, otherwise its place in the order of PCI addresses
  std::string name;  ///< "cuda0", "nvml0", …; "gpu0" if the machine's hwloc had no GPU library
  Vendor vendor = Vendor::other;
  std::string model;  ///< PCI id, "10de:20b0", if no name is recorded
  std::string uuid;   ///< may be empty
  PciPlace place;
};

enum class PortState { unknown, down, init, armed, active };

struct NicPort {
  int number = 1;
  PortState state = PortState::unknown;
  double gbit_per_s = 0;  ///< 0: unknown
};

/// A network card's function: an RDMA device with its ports, or plain Ethernet for tcp.
struct Nic {
  std::string name;       ///< "mlx5_0"; of one without RDMA its interface, "eth0"
  std::string interface;  ///< the network interface that belongs to it; empty: none
  std::string address;    ///< hardware address; may be empty
  bool rdma = false;
  bool infiniband = false;  ///< link layer; else Ethernet
  std::vector<NicPort> ports;
  double pci_gbyte_per_s = 0;  ///< speed of its PCI link; 0: unknown
  PciPlace place;

  bool usable() const;  ///< some port is active, or none is recorded as down
};

struct Machine {
  std::string name;    ///< host name; may be empty
  std::string source;  ///< "this machine", the file, the description
  bool live = false;   ///< it is the machine of this process
  std::vector<Package> packages;
  std::vector<NumaNode> numa_nodes;
  std::vector<Core> cores;
  /// The cpus on which this process may run, over all cores.
  CpuSet allowed;
  std::vector<Bridge> bridges;
  std::vector<Gpu> gpus;           ///< sorted by index
  std::vector<Nic> nics;           ///< sorted by PCI address, ports of one card next to each other
  std::vector<std::string> notes;  ///< facts that discovery could not find out or left out, for people
};

/// Connection between two PCI devices, nearest first; the letters of nvidia-smi's matrix are in brackets.
enum class PathClass {
  same_switch,     ///< one PCI switch, or one bridge (PIX)
  same_root_port,  ///< several switches below one root port (PXB)
  same_root,       ///< bridges of one root (PHB)
  same_numa_node,  ///< different roots of one NUMA node (NODE)
  same_package,    ///< different NUMA nodes of one package
  across,          ///< different packages (SYS)
  unknown,         ///< not recorded; never counts as near
};

const char* to_string(PathClass path);  ///< "same switch", …
const char* to_string(Vendor vendor);
const char* to_string(PortState state);

/// Computed from the PCI tree alone: the bridge the two have in common, else their NUMA nodes and packages.
/// A path without recorded places is `unknown`, even if both devices could be near each other.
PathClass path_class(const Machine& machine, const PciPlace& a, const PciPlace& b);

/// Counts the cores with a cpu that this process may use.
/// Cores, not cpus: siblings share the execution units of one core.
int usable_core_count(const Machine& machine);

}  // namespace gradrail::topology
