#pragma once

#include <string>
#include <vector>

#include "tools/train/train_options.h"

namespace gradrail::tools {

/// Replaces this process by the worker program `command`. The program finds its cluster in the environment
/// (worker/client/gradrail.h), of which `options` has the tasks and the index of this one.
/// Returns  only after an error, the exit code; 127: there is no such program.
int become_worker_program(const std::vector<std::string>& command, const TrainOptions& options);

}  // namespace gradrail::tools
