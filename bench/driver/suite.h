#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/driver/options.h"

namespace gradrail::bench {

struct DistributedOptions;

/// A measurement of `gradrail bench` with its own options.
class Suite {
 public:
  virtual ~Suite() = default;
  /// The flags beside those of all suites. Removes shared ones that have no effect.
  virtual void add_flags(CLI::App& app) = 0;
  /// Prints its rows. Returns the exit code: 1 a path failed, 3 wrong data arrived.
  /// Errors  INVALID_ARGUMENT: flags. Others: nothing could be measured; the text has the reason.
  virtual absl::StatusOr<int> run(const Options& options) const = 0;
  /// The options of a suite that may run over several processes; null for the others.
  virtual const DistributedOptions* distributed() const { return nullptr; }
};

/// A suite of a struct with its options and their flags, and a function.
/// Shapes  Own: has add_flags(CLI::App&).
template <typename Own>
class SuiteWith : public Suite {
 public:
  using Run = absl::StatusOr<int> (*)(const Options& options, const Own& own);
  explicit SuiteWith(Run run) : run_(run) {}
  void add_flags(CLI::App& app) override { own_.add_flags(app); }
  absl::StatusOr<int> run(const Options& options) const override { return run_(options, own_); }
  const DistributedOptions* distributed() const override {
    if constexpr (std::is_convertible_v<Own*, DistributedOptions*>) return &own_;
    return nullptr;
  }

 private:
  const Run run_;
  Own own_;
};

using NewSuite = std::unique_ptr<Suite>();
// Each suite is one source in bench/suites; `matrix` is in bench/cluster.
NewSuite new_paths_suite, new_exchange_suite, new_incast_suite, new_matrix_suite, new_put_suite, new_apply_suite,
    new_staged_suite, new_replay_suite, new_straggler_suite, new_publish_suite, new_peers_suite;

}  // namespace gradrail::bench
