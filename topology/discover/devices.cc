#include <algorithm>

#include "topology/discover/hwloc.h"

namespace gradrail::topology {
namespace {

bool is_whole_machine(hwloc_topology_t topology, hwloc_obj_t object) {
  return hwloc_bitmap_isincluded(hwloc_get_root_obj(topology)->cpuset, object->cpuset) != 0;
}

/// The one NUMA node with cpus in common with this set; -1: several, or none.
int only_node(const Machine& machine, const CpuSet& cpus) {
  int found = -1;
  for (size_t i = 0; i < machine.numa_nodes.size(); ++i) {
    const CpuSet& its = machine.numa_nodes[i].cpus;
    if (!its.intersects(cpus)) continue;
    // Two kinds of memory of one locality are one locality: the first represents both.
    if (found >= 0 && its == machine.numa_nodes[static_cast<size_t>(found)].cpus) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(i);
  }
  return found;
}

/// The one package with cpus in common with the object's set; -1: several, or none.
int only_package(hwloc_topology_t topology, hwloc_const_cpuset_t cpus) {
  int found = -1;
  for (hwloc_obj_t package = nullptr;
       (package = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PACKAGE, package)) != nullptr;) {
    if (!hwloc_bitmap_intersects(package->cpuset, cpus)) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(package->logical_index);
  }
  return found;
}

PciAddress address_of(const PciFacts& pci) {
  return {.domain = static_cast<uint32_t>(pci.domain), .bus = pci.bus, .device = pci.dev, .function = pci.func};
}

int bridge_above(hwloc_obj_t object) {
  const hwloc_obj_t parent = object->parent;
  return parent != nullptr && parent->type == HWLOC_OBJ_BRIDGE ? static_cast<int>(parent->logical_index) : -1;
}

Bridge make_bridge(hwloc_topology_t topology, hwloc_obj_t object) {
  const BridgeFacts& attr = object->attr->bridge;
  Bridge bridge;
  bridge.host = attr.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
  if (bridge.host) {
    bridge.address.domain = static_cast<uint32_t>(attr.downstream.pci.domain);
    bridge.address.bus = attr.downstream.pci.secondary_bus;
    const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, object);
    if (!is_whole_machine(topology, near)) bridge.cpus = to_cpu_set(near->cpuset);
  } else {
    bridge.address = address_of(attr.upstream.pci);
    bridge.parent = bridge_above(object);
  }
  return bridge;
}

void collect_os_devices(hwloc_obj_t above, std::vector<hwloc_obj_t>& found) {
  for (hwloc_obj_t child = above->io_first_child; child != nullptr; child = child->next_sibling) {
    if (child->type != HWLOC_OBJ_OS_DEVICE) continue;
    found.push_back(child);
    collect_os_devices(child, found);
  }
}

}  // namespace

std::vector<hwloc_obj_t> os_devices_below(hwloc_obj_t pci_device) {
  std::vector<hwloc_obj_t> found;
  collect_os_devices(pci_device, found);
  return found;
}

hwloc_obj_t pci_above(hwloc_obj_t os_device) {
  hwloc_obj_t above = os_device->parent;
  while (above != nullptr && above->type == HWLOC_OBJ_OS_DEVICE) above = above->parent;
  return above != nullptr && above->type == HWLOC_OBJ_PCI_DEVICE ? above : nullptr;
}

PciPlace place_of(hwloc_topology_t topology, hwloc_obj_t object, const Machine& machine) {
  PciPlace place;
  const hwloc_obj_t pci = object->type == HWLOC_OBJ_PCI_DEVICE ? object : pci_above(object);
  if (pci == nullptr) return place;
  place.address = address_of(pci->attr->pcidev);
  place.bridge = bridge_above(pci);
  // A device below the whole machine is near all nodes, or its position is unknown. Only a machine with one node gives
  // an answer.
  const hwloc_obj_t above = hwloc_get_non_io_ancestor_obj(topology, pci);
  const CpuSet near = to_cpu_set(above->cpuset);
  place.numa_node = only_node(machine, near);
  place.package = only_package(topology, above->cpuset);
  if (place.numa_node >= 0 || place.package >= 0) place.cpus = near;
  return place;
}

void read_devices(hwloc_topology_t topology, Machine& machine) {
  for (hwloc_obj_t bridge = nullptr; (bridge = hwloc_get_next_bridge(topology, bridge)) != nullptr;)
    machine.bridges.push_back(make_bridge(topology, bridge));
  read_gpus(topology, machine);
  read_nics(topology, machine);
}

}  // namespace gradrail::topology
