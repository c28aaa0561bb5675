#pragma once

#include "launch/supervise/task_bodies.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {

/// The tasks of `gradrail train`, and the ps of `gradrail run`. A worker trains its epochs; with `--ps 0` it keeps the
/// variables itself. Lines for people go to stdout.
launch::TaskBodies task_bodies(const TrainOptions& options);

}  // namespace gradrail::tools
