#pragma once

#include "absl/status/status.h"
#include "launch/supervise/task_bodies.h"

namespace gradrail::launch {

/// Whether srun, mpirun, torchrun or ps-lite's tracker has started us as one of several tasks. If so, `options` are
/// those of a cluster that is known by its size. Errors  INVALID_ARGUMENT: variables or flags that do not fit together.
absl::Status check_launch(TaskOptions& options);

/// One task of a launcher: meets the others, then is what they agreed upon.
absl::Status run_launched(TaskOptions options, const TaskBodies& bodies, SignalThread& signals);

}  // namespace gradrail::launch
