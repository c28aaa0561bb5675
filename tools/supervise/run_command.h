#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/train_options.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail run`: those of a cluster, and the program that its workers run.
struct RunFlags {
  TrainFlags cluster;
  std::vector<std::string> program;
};

void add_run_flags(CLI::App& command, RunFlags& flags);

/// The number of arguments before the program of `gradrail run`, `--` included; all of them for another subcommand. The
/// parser of the flags gets these alone, because the program has flags of its own.
int arguments_before_program(const CLI::App& command, int argc, char** argv);

/// The tasks of `gradrail train`, with the program in the place of the workers.
/// Errors  INVALID_ARGUMENT: the flags, or no program; as check_train_flags().
absl::StatusOr<TrainOptions> check_run_flags(const RunFlags& flags);

}  // namespace gradrail::tools
