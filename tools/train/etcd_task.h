#pragma once

#include "absl/status/status.h"
#include "tools/train/signal_thread.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {

/// Checks the flags beside --rendezvous etcd://, and sets task and size of the run. Errors  INVALID_ARGUMENT.
absl::Status check_rendezvous(TrainOptions& options);

/// Runs one task that finds the ps tasks through etcd.
absl::Status run_with_etcd(TrainOptions options, SignalThread& signals);

}  // namespace gradrail::tools
