#pragma once

#include <string>

namespace gradrail {

/// Version and commit of this build: "gradrail 0.2.0 1a2b3c4". Processes of one run compare it, because two builds may
/// have unequal wire formats.
std::string build_version();

/// The commit of this build: "1a2b3c4", "1a2b3c4-dirty" for changed sources, or "unknown" for sources without git.
std::string build_commit();

}  // namespace gradrail
