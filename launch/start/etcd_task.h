#pragma once

#include "absl/status/status.h"
#include "launch/supervise/task_bodies.h"

namespace gradrail::launch {

/// Checks the flags beside --rendezvous etcd://, and sets task and size of the run. Errors  INVALID_ARGUMENT.
absl::Status check_rendezvous(TaskOptions& options);

/// Runs one task that finds the ps tasks through etcd.
absl::Status run_with_etcd(TaskOptions options, const TaskBodies& bodies, SignalThread& signals);

}  // namespace gradrail::launch
