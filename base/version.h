#pragma once

#include <string>

namespace gradrail {

/// Version and commit of this build: "gradrail 0.1.0 1a2b3c4". Processes of one run compare it, because two builds may
/// have unequal wire formats.
std::string build_version();

}  // namespace gradrail
