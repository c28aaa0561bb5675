#pragma once

#include "tools/train/train_options.h"

namespace gradrail::tools {

/// Replaces this process by TrainOptions::program. The program finds its cluster in the environment
/// (gradrail/gradrail.h), of which `options` has the tasks and the index of this one. If there is no such program,
/// the process ends with code 127, as in a shell.
[[noreturn]] void become_worker_program(const TrainOptions& options);

}  // namespace gradrail::tools
