#pragma once

#include "base/check.h"
#include "topology/machine.h"

namespace gradrail::topology {

/// Stops the process unless the machine has the invariants that a planner needs.
inline void check_sound(const Machine& machine) {
  const auto is_index = [](int index, size_t count) { return index >= -1 && index < static_cast<int>(count); };
  GRADRAIL_CHECK(!machine.cores.empty());
  CpuSet seen;
  for (const Core& core : machine.cores) {
    GRADRAIL_CHECK(!core.cpus.empty());
    GRADRAIL_CHECK(is_index(core.package, machine.packages.size()));
    GRADRAIL_CHECK(is_index(core.numa_node, machine.numa_nodes.size()));
    for (const int cpu : core.cpus) {
      GRADRAIL_CHECK(!seen.contains(cpu));
      seen.insert(cpu);
    }
    for (const int cpu : core.allowed) GRADRAIL_CHECK(machine.allowed.contains(cpu));
  }
  for (size_t i = 0; i < machine.bridges.size(); ++i) {
    size_t steps = 0;
    for (int above = static_cast<int>(i); above >= 0; above = machine.bridges[above].parent)
      GRADRAIL_CHECK(steps++ < machine.bridges.size());
  }
  const auto check_place = [&](const PciPlace& place) {
    GRADRAIL_CHECK(is_index(place.bridge, machine.bridges.size()));
    GRADRAIL_CHECK(is_index(place.package, machine.packages.size()));
    GRADRAIL_CHECK(is_index(place.numa_node, machine.numa_nodes.size()));
  };
  for (const Gpu& gpu : machine.gpus) check_place(gpu.place);
  for (const Nic& nic : machine.nics) check_place(nic.place);
}

}  // namespace gradrail::topology
