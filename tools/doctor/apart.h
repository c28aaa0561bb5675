#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace gradrail::tools::doctor {

/// Runs `work` in a process of its own and returns what it said: libraries and drivers that are being examined may
/// crash, print, hang or keep threads, and nothing of that may touch who examines them. To be called while this process
/// has one thread.
/// Errors  as `work`; UNAVAILABLE: it died, and of what. DEADLINE_EXCEEDED: it was still busy, and was killed.
absl::StatusOr<std::string> run_apart(const std::function<absl::StatusOr<std::string>()>& work, Duration patience);

}  // namespace gradrail::tools::doctor
