#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "bench/options.h"

namespace gradrail::bench {

/// One thing that `gradrail bench` measures.
struct Question {
  const char* name;
  const char* about;
  void (*add_flags)(CLI::App& app, Options& options);  ///< beside those of all; null: none
  /// Prints its rows. Returns the exit code: 1 a path failed, 3 something arrived wrong.
  /// Errors  INVALID_ARGUMENT: flags. Others: nothing could be measured; says why.
  absl::StatusOr<int> (*run)(const Options& options);
};

/// In the order in which people should read them.
const std::vector<Question>& questions();

// question_*.cc
absl::StatusOr<int> ask_put(const Options& options);
absl::StatusOr<int> ask_exchange(const Options& options);
absl::StatusOr<int> ask_incast(const Options& options);
absl::StatusOr<int> ask_apply(const Options& options);
absl::StatusOr<int> ask_register(const Options& options);
absl::StatusOr<int> ask_paths(const Options& options);
absl::StatusOr<int> ask_staged(const Options& options);
absl::StatusOr<int> ask_replay(const Options& options);
absl::StatusOr<int> ask_peers(const Options& options);
absl::StatusOr<int> ask_straggler(const Options& options);
void add_straggler_flags(CLI::App& app, Options& options);

}  // namespace gradrail::bench
