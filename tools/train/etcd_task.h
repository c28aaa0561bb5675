#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/train/signal_thread.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {

/// Whether --rendezvous names an etcd. With tcp:// it names the host of a launcher's first task (launched_task.h).
bool uses_etcd(const TrainFlags& flags);

/// The form of the value of --rendezvous. Errors  INVALID_ARGUMENT: what would be right.
absl::Status check_rendezvous_url(const std::string& url);

/// Checks the flags beside --rendezvous etcd://, and sets task and size of the run. Errors  INVALID_ARGUMENT.
absl::Status check_rendezvous(TrainOptions& options);

/// Runs one task that finds the ps tasks through etcd.
absl::Status run_with_etcd(TrainOptions options, SignalThread& signals);

}  // namespace gradrail::tools
