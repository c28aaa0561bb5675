#pragma once

#include <chrono>

#include "gradrail/clock.h"

namespace gradrail {

/// How long to spin before blocking.
struct WaitPolicy {
  Duration spin = Duration::zero();
  /// Few waits spin while completions arrive after the end of the spin, and a spin yields the core to other threads.
  /// For tasks with long pauses, and for hosts with fewer cores than runnable threads, where spins delay answers.
  bool adapts = false;
};

/// Longer than the exchange of a model of 1 MB, and no longer than two wake-ups of an idle virtual CPU.
inline constexpr WaitPolicy kAdaptiveWait = {.spin = std::chrono::microseconds(100), .adapts = true};

}  // namespace gradrail
