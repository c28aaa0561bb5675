#pragma once

#include <string>

#include "topology/machine.h"
#include "topology/plan.h"

namespace gradrail::topology {

/// The machine as a picture (SVG 1.1, one file, no scripts): boxes inside boxes, every core a cell in the colour of who
/// sits there, devices with the marks of who uses them, a legend. Texts of the machine are escaped.
std::string draw_svg(const Machine& machine, const Placement& placement);

}  // namespace gradrail::topology
