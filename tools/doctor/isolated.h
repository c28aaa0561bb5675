#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace gradrail::tools::doctor {

/// Runs `work` in a process of its own and returns its output. Libraries and drivers that are being examined may
/// crash, print, hang or keep threads, and nothing of that may affect the caller. To be called while this process
/// has one thread.
/// Errors  as `work`; UNAVAILABLE: it failed, and the cause. DEADLINE_EXCEEDED: it was still busy, and was killed.
absl::StatusOr<std::string> run_isolated(const std::function<absl::StatusOr<std::string>()>& work, Duration timeout);

}  // namespace gradrail::tools::doctor
