#pragma once

#include <string>

#include "topology/machine.h"

namespace gradrail::topology {

/// Adds facts of the running system that hwloc does not have: states and rates of ports, link layers, speeds of
/// interfaces. Also adds network cards that hwloc does not show because they are not PCI devices (soft-RoCE, buses of
/// virtual machines); their position is unknown. `sys` is "/sys", or a test's folder with the same structure.
void add_live_facts(const std::string& sys, Machine& machine);

}  // namespace gradrail::topology
