#pragma once

#include "tools/train_options.h"

namespace gradrail::tools {

/// Runs a whole cluster on this host, one process a task, and supervises it: when a task fails the others are given
/// time to notice, then ended. The chief's lines are printed as they are, the others' with their task's name in front;
/// on a terminal every worker has a bar. Returns the exit code for the program. Must be called before the process has
/// any thread: tasks are forked.
int run_local_cluster(TrainOptions options);

}  // namespace gradrail::tools
