#pragma once

#include <string>

#include "topology/machine.h"
#include "topology/plan/plan.h"

namespace gradrail::topology {

/// The machine as a picture (SVG 1.1, one file, no scripts): boxes inside boxes. A core has the colour of its unit, a
/// device has the marks of its users, and there is a legend. Texts of the machine are escaped.
/// Shapes  UTF-8; width and height in pixels follow from the content.
std::string draw_svg(const Machine& machine, const Placement& placement);

}  // namespace gradrail::topology
