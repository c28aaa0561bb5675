#pragma once

#include "absl/status/status.h"
#include "tools/train/signal_thread.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {

/// Whether srun, mpirun, torchrun or ps-lite's tracker has started us as one of several tasks. If so, `options` are
/// those of a cluster that is known by its size. Errors  INVALID_ARGUMENT: variables or flags that do not fit together.
absl::Status check_launch(TrainOptions& options);

/// One task of a launcher: meets the others, then is what they agreed upon.
absl::Status run_launched(TrainOptions options, SignalThread& signals);

}  // namespace gradrail::tools
