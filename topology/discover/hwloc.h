#pragma once

#include <hwloc.h>

#include <memory>
#include <string>
#include <vector>

#include "topology/cpu_set.h"
#include "topology/machine.h"

// This header connects hwloc with our values; it is private to discovery.

namespace gradrail::topology {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;

/// An empty topology with the filters of discovery.
absl::StatusOr<Topology> new_topology();

/// Fills everything but `source`, `live` and the facts of /sys.
/// Errors  Those of read_processors().
absl::Status read_machine(hwloc_topology_t topology, Machine& machine);

using PciFacts = hwloc_obj_attr_u::hwloc_pcidev_attr_s;
using BridgeFacts = hwloc_obj_attr_u::hwloc_bridge_attr_s;

/// Cpus beyond CpuSet::kMaxCpu are left out, because a bitmap may be infinite.
CpuSet to_cpu_set(hwloc_const_bitmap_t bitmap);

/// The value of an info of this name; "" when there is none.
std::string info(hwloc_obj_t object, const char* name);

/// Names in hwloc's files may hold any bytes. Bytes that are not printable ASCII become '?', so that a terminal can
/// show the name.
std::string printable(const char* text);

/// Packages, NUMA nodes and cores; `allowed` as hwloc has it.
/// Errors  INVALID_ARGUMENT: no cpus, or numbers beyond CpuSet::kMaxCpu.
absl::Status read_processors(hwloc_topology_t topology, Machine& machine);

/// Bridges, GPUs and NICs, after the processors.
void read_devices(hwloc_topology_t topology, Machine& machine);

/// GPUs among the PCI devices, numbered and named.
void read_gpus(hwloc_topology_t topology, Machine& machine);
void read_nics(hwloc_topology_t topology, Machine& machine);
void sort_nics(Machine& machine);

/// Position of a PCI device, or of a device of the operating system below one.
PciPlace place_of(hwloc_topology_t topology, hwloc_obj_t object, const Machine& machine);

/// The PCI device that a device of the system belongs to; null: none.
hwloc_obj_t pci_above(hwloc_obj_t os_device);

/// All devices of the system below a PCI device.
std::vector<hwloc_obj_t> os_devices_below(hwloc_obj_t pci_device);

}  // namespace gradrail::topology
