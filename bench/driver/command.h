#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/driver/options.h"
#include "bench/driver/suite.h"

namespace gradrail::bench {

/// The request of the command line.
struct BenchFlags {
  Options options;
  std::vector<std::unique_ptr<Suite>> suites;
  const Suite* suite = nullptr;       ///< the chosen one
  int job_output = -1;                ///< output of the hidden `job`; -1: not started for one
  std::vector<std::string> no_suite;  ///< words where a suite should have been
};

/// `gradrail bench SUITE …`: a subcommand for each suite.
void add_bench_flags(CLI::App& command, BenchFlags& flags);

/// Returns the program's exit code (base/exit_codes.h): 1 a path failed, 2 flags, 3 wrong results.
int run_bench(const BenchFlags& flags, int argc, char** argv);

}  // namespace gradrail::bench
