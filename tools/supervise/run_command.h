#pragma once

#include <string>
#include <vector>

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

/// Starts parameter servers and the program as workers on this host, and supervises them. Returns the exit code of the
/// first program that fails. If a launcher or TF_CONFIG has given this process a rank, it becomes that ps, or the
/// program as that worker. Must be called as run_local_cluster().
int run_program(RunFlags flags);

}  // namespace gradrail::tools
