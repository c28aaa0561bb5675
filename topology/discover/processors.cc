#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "fmt/format.h"
#include "topology/discover/hwloc.h"

namespace gradrail::topology {
namespace {

int package_of(hwloc_topology_t topology, hwloc_obj_t object) {
  const hwloc_obj_t package =
      object->type == HWLOC_OBJ_PACKAGE ? object : hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, object);
  return package == nullptr ? -1 : static_cast<int>(package->logical_index);
}

/// The first NUMA node at or below a memory child: there may be memory-side caches above it.
hwloc_obj_t node_below(hwloc_obj_t memory) {
  while (memory != nullptr && memory->type != HWLOC_OBJ_NUMANODE) memory = memory->memory_first_child;
  return memory;
}

/// hwloc gives memory without cpus (of a GPU, of an expansion card) the cpus of its parent object. A node below the
/// whole machine is not local to any cpu once other nodes divide the machine.
bool is_local_node(hwloc_topology_t topology, hwloc_obj_t node) {
  if (node->subtype != nullptr && std::strcmp(node->subtype, "GPUMemory") == 0) return false;
  if (!hwloc_bitmap_isequal(node->cpuset, hwloc_get_root_obj(topology)->cpuset)) return true;
  for (hwloc_obj_t other = nullptr;
       (other = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, other)) != nullptr;)
    if (!hwloc_bitmap_iszero(other->cpuset) && !hwloc_bitmap_isequal(other->cpuset, node->cpuset)) return false;
  return true;
}

/// The memory nearest to a cpu. Where a locality has several kinds (HBM beside DRAM), hwloc lists the ordinary one
/// first.
int nearest_node(hwloc_topology_t topology, hwloc_obj_t object) {
  for (hwloc_obj_t above = object; above != nullptr; above = above->parent) {
    for (hwloc_obj_t child = above->memory_first_child; child != nullptr; child = child->next_sibling) {
      const hwloc_obj_t node = node_below(child);
      if (node != nullptr && is_local_node(topology, node) && hwloc_bitmap_isincluded(object->cpuset, node->cpuset))
        return static_cast<int>(node->logical_index);
    }
  }
  return -1;
}

/// Hybrid processors rank their kinds of cores; elsewhere there are none.
int efficiency_of(hwloc_topology_t topology, hwloc_obj_t object) {
  const int kind = hwloc_cpukinds_get_by_cpuset(topology, object->cpuset, 0);
  int efficiency = -1;
  if (kind < 0 || hwloc_cpukinds_get_info(topology, kind, nullptr, &efficiency, nullptr, nullptr, 0) != 0) return 0;
  return std::max(efficiency, 0);
}

void read_packages(hwloc_topology_t topology, Machine& machine) {
  const hwloc_obj_t root = hwloc_get_root_obj(topology);
  for (hwloc_obj_t package = nullptr;
       (package = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PACKAGE, package)) != nullptr;) {
    const std::string model = info(package, "CPUModel");
    machine.packages.push_back(
        {.os_index = static_cast<int>(package->os_index), .model = model.empty() ? info(root, "CPUModel") : model});
  }
}

void read_numa_nodes(hwloc_topology_t topology, Machine& machine) {
  const hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(topology);
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    machine.numa_nodes.push_back({.os_index = static_cast<int>(node->os_index),
                                  .package = package_of(topology, node),
                                  .cpus = is_local_node(topology, node) ? to_cpu_set(node->cpuset) : CpuSet{},
                                  .memory_bytes = node->attr->numanode.local_memory,
                                  .allowed = hwloc_bitmap_isset(allowed, node->os_index) != 0});
  }
}

Core make_core(hwloc_topology_t topology, hwloc_obj_t object) {
  return {.package = package_of(topology, object),
          .numa_node = nearest_node(topology, object),
          .efficiency = efficiency_of(topology, object)};
}

/// Reads cores from the logical processors up, so that those without a Core object (some virtual machines) are cores of
/// one.
absl::Status read_cores(hwloc_topology_t topology, Machine& machine) {
  std::unordered_map<hwloc_obj_t, size_t> core_index;
  for (hwloc_obj_t cpu = nullptr; (cpu = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, cpu)) != nullptr;) {
    if (cpu->os_index > static_cast<unsigned>(CpuSet::kMaxCpu)) {
      return absl::InvalidArgumentError(
          fmt::format("a cpu has number {}: more than {} make no sense", cpu->os_index, CpuSet::kMaxCpu));
    }
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, cpu);
    const hwloc_obj_t object = core == nullptr ? cpu : core;
    const auto [at, is_new] = core_index.emplace(object, machine.cores.size());
    if (is_new) machine.cores.push_back(make_core(topology, object));
    const int number = static_cast<int>(cpu->os_index);
    machine.cores[at->second].cpus.push_back(number);
    if (machine.allowed.contains(number)) machine.cores[at->second].allowed.push_back(number);
  }
  if (machine.cores.empty()) return absl::InvalidArgumentError("it has no cpus");
  return absl::OkStatus();
}

}  // namespace

CpuSet to_cpu_set(hwloc_const_bitmap_t bitmap) {
  CpuSet cpus;
  if (bitmap == nullptr) return cpus;
  for (int cpu = hwloc_bitmap_first(bitmap); cpu >= 0 && cpu <= CpuSet::kMaxCpu; cpu = hwloc_bitmap_next(bitmap, cpu))
    cpus.insert(cpu);
  return cpus;
}

std::string printable(const char* text) {
  std::string result = text == nullptr ? "" : text;
  for (char& c : result)
    if (c < ' ' || c > '~') c = '?';
  return result;
}

std::string info(hwloc_obj_t object, const char* name) { return printable(hwloc_obj_get_info_by_name(object, name)); }

absl::Status read_processors(hwloc_topology_t topology, Machine& machine) {
  machine.name = info(hwloc_get_root_obj(topology), "HostName");
  if (hwloc_get_type_depth(topology, HWLOC_OBJ_PACKAGE) == HWLOC_TYPE_DEPTH_MULTIPLE)
    return absl::InvalidArgumentError("its packages stand on different levels");
  read_packages(topology, machine);
  read_numa_nodes(topology, machine);
  return read_cores(topology, machine);
}

}  // namespace gradrail::topology
