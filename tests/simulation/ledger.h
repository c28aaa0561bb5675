#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/push_format.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::simulation {

constexpr uint32_t kMaxSimulatedWorkers = 4;

/// Shape of one run. The seed decides it.
struct Shape {
  ModeKind mode = ModeKind::sync;
  uint32_t bound = 0;
  Grace grace{};
  bool drops_late = false;
  uint32_t workers = 1;
  uint32_t servers = 1;
  uint32_t shards_per_server = 1;
  bool backups = false;
  bool checkpoints = false;
  uint32_t buckets = 2;    ///< of the whole model
  uint32_t fragments = 1;  /// at most as many as buckets
  uint32_t steps = 10;     ///< of each worker, in each fragment
  bool weights = false;
  bool few_slots = false;  ///< buckets of a worker share places at the shard
  PushFormat push = PushFormat::fp32;
  ReturnFormat returns = ReturnFormat::fp32;
  bool sums() const { return Mode{.kind = mode}.sums(); }
  /// Fragments begin at multiples of 64 elements, and formats have multiples of their own.
  size_t bucket_elements() const { return std::max<size_t>(fragments > 1 ? 64 : 16, ps::cut_elements(push)); }
  size_t elements() const { return buckets * bucket_elements(); }
  /// The elements of a fragment.
  ps::ElementRange fragment(uint32_t index) const;
  /// A worker's gradients in a step have this weight.
  float weight(uint32_t worker, int64_t position) const;
  std::string text() const;
};

/// Checks what the workers see. Element i of each 8 with i < 4 counts the gradients of worker i. The gradients of the
/// others depend on the parameters that the worker has seen: one wrong bit changes all later ones.
///
/// Invariants
///   1. No gradient is applied twice: a counter is never above the pushes of its worker.
///   2. async, ssp: without a return to a checkpoint, no acknowledged gradient is lost. The own counter grows by one
///      with each step. With int8 and int4 the rests of a worker are the limit of the difference. With topk they have
///      no limit.
///   3. sync, while no worker was lost: the parameters equal those of an undisturbed run, bit for bit. The bits include
///      formats, rests, weights and the steps of each fragment.
///   4. A server restores the last checkpoint that was reported as written before its start, or a newer one. Damaged
///      files are an exception, and workers of another run than that of the checkpoint (World::check_restored()).
class Ledger {
 public:
  explicit Ledger(const Shape& shape);

  std::vector<float> initial() const;
  /// Shapes   parameters, gradient: [elements of the model]; only those of the range are read and written.
  void fill_gradient(uint32_t worker, int64_t position, const ps::ElementRange& range,
                     absl::Span<const float> parameters, absl::Span<float> gradient) const;

  void on_push(uint32_t worker, uint32_t fragment) { ++pushes_[worker][fragment]; }
  /// The worker has fetched parameters, and begins at these positions of the fragments.
  void on_start(uint32_t worker, const std::vector<int64_t>& positions, absl::Span<const float> parameters);
  /// A step of a fragment was acknowledged.
  void on_step(uint32_t worker, uint32_t fragment, int64_t before, int64_t position,
               absl::Span<const float> parameters);

  /// A worker was lost or a server began again without it: invariant 3 ends.
  void stop_exact(const std::string& why);
  /// Asked before a violation of invariant 3 is declared: "" or a legitimate reason for the difference.
  std::function<std::string()> reason_to_differ;

  const std::string& violation() const { return violation_; }
  void violate(const std::string& what);
  uint64_t steps() const { return steps_; }
  uint64_t exact_steps() const { return exact_steps_; }

 private:
  /// The undisturbed run: one state for each position, from 0 on.
  struct State {
    std::vector<float> parameters;
    std::vector<float> seen;                ///< by the workers
    std::vector<std::vector<float>> rests;  ///< by worker
  };

  void check_counters(uint32_t worker, uint32_t fragment, absl::Span<const float> parameters);
  void check_own_counters(uint32_t worker, uint32_t fragment, absl::Span<const float> parameters);
  void check_exact(uint32_t worker, uint32_t fragment, int64_t position, absl::Span<const float> parameters);
  const State& undisturbed(int64_t position);
  /// Replaces a gradient by the values that arrive at the shards.
  void round_push(absl::Span<float> gradient, std::vector<float>& rests) const;
  std::vector<float> mean(const std::vector<std::vector<float>>& gradients, int64_t position) const;
  /// The possible error of a counter.
  float slack(float count) const;

  const Shape shape_;
  std::vector<std::vector<uint64_t>> pushes_;     ///< by worker and fragment
  std::vector<std::vector<float>> first_counts_;  ///< by worker and counter, at its start; async, ssp
  std::vector<std::vector<uint64_t>> own_steps_;  ///< by worker and fragment, since its start
  std::vector<State> model_;
  bool is_exact_ = false;
  std::string violation_;
  uint64_t steps_ = 0, exact_steps_ = 0;
};

}  // namespace gradrail::simulation
