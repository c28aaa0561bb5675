#pragma once

#include "launch/supervise/task_bodies.h"

namespace gradrail::launch {

/// Runs all tasks of a local cluster, or the one task that this process is. Prints errors, and returns the exit code.
/// Threads  The process has no other thread yet, and has called block_signals().
int run_tasks(TaskOptions options, const TaskBodies& bodies);

}  // namespace gradrail::launch
