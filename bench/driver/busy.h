#pragma once

#include <string>

namespace gradrail::bench {

/// Looks for a moment how much of this machine others use, before we start. Returns a line for people when it is so
/// much that figures suffer; "" when it is not, or cannot be seen.
/// Takes 0.2 s.
std::string busy_warning();

}  // namespace gradrail::bench
