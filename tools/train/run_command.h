#pragma once

#include "absl/status/statusor.h"
#include "tools/train/train_options.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The number of arguments before the program of `gradrail run`, `--` included; all of them for another subcommand. The
/// parser of the flags gets these alone, because the program has flags of its own.
int arguments_before_program(const CLI::App& command, int argc, char** argv);

/// The tasks of `gradrail train`, with TaskOptions::program in the place of the workers.
/// Errors  INVALID_ARGUMENT: the flags, or no program; as check_train_options().
absl::StatusOr<TrainOptions> check_run_options(TrainOptions options);

}  // namespace gradrail::tools
