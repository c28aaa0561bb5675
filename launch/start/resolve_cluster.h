#pragma once

#include "absl/status/status.h"
#include "launch/task/task_options.h"

namespace gradrail::launch {

/// Finds the cluster and the task of this process: by --rendezvous, --cluster, --ps_hosts, TF_CONFIG or the variables of
/// a launcher; else the tasks are a local cluster.
/// Errors  INVALID_ARGUMENT names the flag or the variable, and what would be right.
absl::Status resolve_cluster(TaskOptions& options);

}  // namespace gradrail::launch
