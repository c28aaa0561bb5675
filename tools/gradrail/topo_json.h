#pragma once

#include <string>

#include "topology/machine.h"
#include "topology/plan/plan.h"

namespace gradrail::tools {

/// Machine and placement as one JSON object. NUMA nodes and packages by the system's numbers, cpus in list format,
/// GPUs by index, NICs by name; null for what there is none of.
/// Programs read it: a change of a name or a meaning needs a new "version".
std::string topo_json(const topology::Machine& machine, const topology::Placement& placement);

}  // namespace gradrail::tools
