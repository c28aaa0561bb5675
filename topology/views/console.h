#pragma once

#include <string>

#include "topology/machine.h"
#include "topology/plan/plan.h"

namespace gradrail::topology {

/// A tree of the machine in lstopo's manner, with towers, shards and NICs drawn into it. UTF-8, lines end in \n.
std::string draw_tree(const Machine& machine, const Placement& placement);

/// Draws one row for each tower and shard: GPU, NIC, path class, NUMA node, cores. A reader can compare it with lstopo.
std::string draw_table(const Machine& machine, const Placement& placement);

}  // namespace gradrail::topology
