#pragma once

#include <functional>

#include "launch/supervise/task_bodies.h"

namespace gradrail::launch {

/// Runs `options.task` in this process: by its body, or as the program of a worker.
absl::Status run_task(const TaskOptions& options, const TaskBodies& bodies, SignalThread& signals,
                      const std::function<void(uint16_t port)>& listening = {});

/// Runs all tasks of a local cluster, or the one task that this process is. Prints errors, and returns the exit code.
/// Threads  The process has no other thread yet, and has called block_signals().
int run_tasks(TaskOptions options, const TaskBodies& bodies);

}  // namespace gradrail::launch
