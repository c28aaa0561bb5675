#pragma once

#include <string>

#include "topology/machine.h"
#include "topology/plan/plan.h"

namespace gradrail::topology {

/// PathClass of every GPU with every NIC, in nvidia-smi's letters; empty when there is not one of each.
/// Lines end in \n; a legend of the letters that occur follows the matrix.
std::string draw_paths(const Machine& machine);

/// The why-table: those paths, then why each thing was chosen and why everything else was not.
std::string explain(const Machine& machine, const Placement& placement);

}  // namespace gradrail::topology
