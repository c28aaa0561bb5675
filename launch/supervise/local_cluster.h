#pragma once

#include "launch/supervise/task_bodies.h"

namespace gradrail::launch {

/// Runs a whole cluster on this host, one process a task, and supervises it. When a task fails the others are given
/// time to notice, then ended. The chief's lines are printed as they are, the others' with their task's name in front,
/// without their step lines. Returns the exit code for the program. Must be called after block_signals(), and before
/// the process has any thread: tasks are forked.
/// Signals  is_stop() to this process, to the process group or to both stops the run. The workers leave, the chief
///          saves, then the ps end. Repeats within a second are the same request; a later one kills all tasks. A task
///          takes its stop from this process; a worker also stops at a SIGTERM of its own, a ps ignores it.
/// Programs  With TaskOptions::program each worker is this command instead. It has its own process group, and its
///           cluster in the environment. All lines have the task's name in front. The first program that fails, and is
///           not started again, ends the run with its exit code. After the end of the servers the others go on.
int run_local_cluster(TaskOptions options, const TaskBodies& bodies);

}  // namespace gradrail::launch
