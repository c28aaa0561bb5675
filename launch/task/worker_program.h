#pragma once

#include "launch/task/task_options.h"

namespace gradrail::launch {

/// Replaces this process by TaskOptions::program. The program finds its cluster in the environment
/// (gradrail/gradrail.h), of which `options` has the tasks and the index of this one. If there is no such program,
/// the process ends with code 127, as in a shell.
[[noreturn]] void become_worker_program(const TaskOptions& options);

}  // namespace gradrail::launch
