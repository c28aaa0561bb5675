#pragma once

#include <string>
#include <vector>

#include "tools/train/train_options.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail run`: those of a local cluster, and the program that its workers run.
struct RunFlags {
  TrainFlags cluster;
  std::vector<std::string> program;
};

void add_run_flags(CLI::App& command, RunFlags& flags);

/// Starts parameter servers and the program as workers on this host, and supervises them. Returns the exit code of the
/// first program that fails. Must be called as run_local_cluster().
int run_program(const CLI::App& command, RunFlags flags);

}  // namespace gradrail::tools
