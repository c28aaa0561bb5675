#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ps/protocol/mode.h"

namespace gradrail::simulation {

constexpr uint32_t kMaxSimulatedWorkers = 4;

/// Shape of one run. The seed decides it.
struct Shape {
  ps::ModeKind mode = ps::ModeKind::sync;
  uint32_t bound = 0;
  ps::Grace grace{};
  uint32_t workers = 1;
  uint32_t servers = 1;
  uint32_t shards_per_server = 1;
  bool backups = false;
  bool checkpoints = false;
  uint32_t buckets = 2;  ///< of the whole model
  uint32_t steps = 10;   ///< of each worker
  bool sums() const { return ps::Mode{.kind = mode}.sums(); }
  size_t elements() const { return size_t{buckets} * 16; }
  std::string text() const;
};

/// Checks what the workers see. Element i of each 8 with i < 4 counts the gradients of worker i. The gradients of the
/// others depend on the parameters that the worker has seen: one wrong bit changes all later ones.
///
/// Invariants
///   1. No gradient is applied twice: a counter is never above the pushes of its worker.
///   2. async, ssp: without a return to a checkpoint, no acknowledged gradient is lost. The own counter grows by one
///      with each step.
///   3. sync, while no worker was lost: the parameters equal those of an undisturbed run, bit for bit.
///   4. A server restores the last checkpoint that was reported as written before its start, or a newer one. Damaged
///      files are an exception (World::check_restored()).
class Ledger {
 public:
  explicit Ledger(const Shape& shape);

  std::vector<float> initial() const;
  void fill_gradient(uint32_t worker, uint64_t position, absl::Span<const float> parameters,
                     absl::Span<float> gradient) const;

  void on_push(uint32_t worker) { ++pushes_[worker]; }
  /// The worker has fetched parameters, and begins at `position`.
  void on_start(uint32_t worker, uint64_t position, absl::Span<const float> parameters);
  /// A step was acknowledged. `returned`: the worker has joined again meanwhile.
  void on_step(uint32_t worker, uint64_t before, uint64_t position, bool returned, absl::Span<const float> parameters);

  /// A worker was lost or a server began again without it: invariant 3 ends.
  void stop_exact(const std::string& why);
  /// Asked before a violation of invariant 3 is declared: "" or a legitimate reason for the difference.
  std::function<std::string()> reason_to_differ;

  const std::string& violation() const { return violation_; }
  void violate(const std::string& what);
  uint64_t steps() const { return steps_; }
  uint64_t exact_steps() const { return exact_steps_; }

 private:
  void check_counters(uint32_t worker, absl::Span<const float> parameters);
  void check_exact(uint32_t worker, uint64_t position, absl::Span<const float> parameters);
  const std::vector<float>& undisturbed(uint64_t position);
  float own_count(uint32_t worker, size_t bucket, absl::Span<const float> parameters) const;

  const Shape shape_;
  std::vector<uint64_t> pushes_;
  std::vector<std::vector<float>> last_counts_;  ///< per worker and bucket; async, ssp
  std::vector<std::vector<float>> model_;        ///< parameters of the undisturbed run, per position
  bool is_exact_ = false;
  std::string violation_;
  uint64_t steps_ = 0, exact_steps_ = 0;
};

}  // namespace gradrail::simulation
