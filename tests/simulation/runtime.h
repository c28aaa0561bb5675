#pragma once

#include <cstdint>

#include "tests/simulation/scheduler.h"

namespace gradrail::simulation {

/// Begins the random numbers that simulated threads draw.
void seed_entropy(uint64_t seed);

/// The wall clock of a process jumps. Its steady clock does not.
void shift_wall_clock(ProcessId process, int64_t by_ns);
int64_t wall_time(ProcessId process, int64_t steady_ns);

}  // namespace gradrail::simulation
