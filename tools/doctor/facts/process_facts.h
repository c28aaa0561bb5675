#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/doctor/tree.h"

namespace gradrail::tools::doctor {

struct MemlockLimit {
  std::optional<uint64_t> soft;  ///< bytes; none: unlimited
};

/// Errors  NOT_FOUND: /proc/self/limits does not say.
absl::StatusOr<MemlockLimit> memlock_limit(Tree& tree);

/// Whether this process has CAP_IPC_LOCK, which lifts the limit on locked memory.
bool may_lock_without_limit(Tree& tree);

/// "uid 1000, groups 27 1000", as /proc/self/status has it.
std::string describe_user(Tree& tree);

}  // namespace gradrail::tools::doctor
