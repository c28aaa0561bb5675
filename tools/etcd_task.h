#pragma once

#include "absl/status/status.h"
#include "tools/train_options.h"

namespace gradrail::tools {

/// Flags that go with --rendezvous. Errors  INVALID_ARGUMENT: those that do not.
absl::Status check_rendezvous(TrainOptions& options);

/// One task that finds the others by way of etcd: takes a place, then is what that says.
absl::Status run_with_etcd(TrainOptions options);

}  // namespace gradrail::tools
