#pragma once

#include <string>
#include <vector>

#include "bench/options.h"

namespace gradrail::bench {

struct CompareFlags {
  std::string first;
  std::string second;
  bool unlike = false;  ///< compare runs of unlike machines or settings all the same
};

/// What was asked on the command line.
struct BenchFlags {
  Options options;
  std::vector<std::string> no_question;  ///< words where a question should have been
  CompareFlags compare;
};

/// `gradrail bench QUESTION …`: a subcommand for each question, and `compare`.
void add_bench_flags(CLI::App& command, BenchFlags& flags);

/// Returns the program's exit code (tools/exit_codes.h): 1 a path failed or was too slow, 2 flags, 3 wrong results.
int run_bench(BenchFlags flags, int argc, char** argv);

}  // namespace gradrail::bench
