#pragma once

#include <string>

#include "topology/machine.h"

namespace gradrail::topology {

/// What the running system knows beyond hwloc: states and rates of ports, link layers, speeds of interfaces; and
/// network cards that hwloc does not show because they are no PCI devices (soft-RoCE, virtual machines' own buses).
/// Those come without a place. `sys` is "/sys", or a folder of a test that looks like it.
void add_live_facts(const std::string& sys, Machine& machine);

}  // namespace gradrail::topology
