#pragma once

#include <string>

namespace gradrail::bench {

/// Measures for 0.2 s the load of this machine by other processes. Returns a warning if the load affects the figures.
/// Returns "" if it does not, or if it cannot be read.
std::string busy_warning();

}  // namespace gradrail::bench
