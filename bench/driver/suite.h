#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "bench/driver/options.h"

namespace gradrail::bench {

/// One thing that `gradrail bench` measures.
struct Suite {
  const char* name;
  const char* about;
  void (*add_flags)(CLI::App& app, Options& options);  ///< beside those of all; null: none
  /// Prints its rows. Returns the exit code: 1 a path failed, 3 something arrived wrong.
  /// Errors  INVALID_ARGUMENT: flags. Others: nothing could be measured; says why.
  absl::StatusOr<int> (*run)(const Options& options);
  std::vector<const char*> refused_flags = {};  ///< flags of all suites that would have no effect in this one
};

/// In the order in which people should read them.
const std::vector<Suite>& suites();

// suite_*.cc
absl::StatusOr<int> run_put_suite(const Options& options);
absl::StatusOr<int> run_exchange_suite(const Options& options);
absl::StatusOr<int> run_incast_suite(const Options& options);
absl::StatusOr<int> run_matrix_suite(const Options& options);
void add_matrix_flags(CLI::App& app, Options& options);
absl::StatusOr<int> run_apply_suite(const Options& options);
absl::StatusOr<int> run_paths_suite(const Options& options);
absl::StatusOr<int> run_staged_suite(const Options& options);
absl::StatusOr<int> run_replay_suite(const Options& options);
absl::StatusOr<int> run_peers_suite(const Options& options);
absl::StatusOr<int> run_straggler_suite(const Options& options);
void add_straggler_flags(CLI::App& app, Options& options);
absl::StatusOr<int> run_publish_suite(const Options& options);
void add_publish_flags(CLI::App& app, Options& options);

}  // namespace gradrail::bench
