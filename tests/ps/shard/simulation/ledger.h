#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ps/shard/shard_protocol.h"
#include "tests/ps/shard/simulation/plan.h"

namespace gradrail::ps::simulation {

/// Identifies an update: the worker, and the part of the model.
struct Piece {
  WorkerIndex worker = 0;
  uint64_t incarnation = 0;
  uint32_t shard = 0;
  uint32_t bucket = 0;
  auto operator<=>(const Piece&) const = default;
};

/// Integers in place of gradients: sums are exact in any order, and each push has its own.
uint64_t gradient_of(const Piece& piece, uint64_t step);

/// The slot of one worker's bucket in the memory of a shard, as written by the latest push on this connection.
struct Slot {
  bool written = false;
  ArrivalKind kind{};
  uint64_t incarnation = 0;
  uint64_t step = 0;
  uint64_t base_version = 0;
  uint64_t payload = 0;
};

/// Checks each action of the protocol against an independent model, and stores the first violation.
class Ledger {
 public:
  explicit Ledger(const Plan& plan);

  void fail(std::string what);
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }

  // Inputs of the shards.
  void on_joined(WorkerIndex worker, uint64_t incarnation, uint32_t shard);
  /// The first arrival of an incarnation: from now on steps wait for it.
  void on_arrived(WorkerIndex worker, uint64_t incarnation, uint32_t shard);
  void on_removed(WorkerIndex worker, uint64_t incarnation, uint32_t shard);
  void on_push_arrived(const Piece& piece, uint64_t step);

  // Decisions of the protocol.
  void on_initialise(const Action& action, uint32_t shard, uint64_t value);
  void on_apply(const Action& action, uint32_t shard, const std::vector<Slot>& slots, const std::vector<Piece>& absent);
  void on_answer(const Action& action, uint32_t shard);
  void on_window(const Action& action, uint32_t shard);
  void on_window_end(uint32_t shard, uint32_t bucket, uint64_t step);

  /// At the worker: `parameters` came with `version`.
  void on_answered(const Piece& piece, uint64_t version, uint64_t parameters);
  /// The worker left because its steps are done.
  void on_done(WorkerIndex worker, uint64_t incarnation);

  /// Everything has come to rest: `parameters` is what a shard's bucket holds.
  void check_final(uint32_t shard, uint32_t bucket, uint64_t version, uint64_t parameters);

  uint64_t value(uint32_t shard, uint32_t bucket) const { return at(shard, bucket).values.back(); }
  bool is_member(WorkerIndex worker, uint64_t incarnation, uint32_t shard) const;
  bool initialised() const;
  uint64_t answered_unapplied() const { return answered_unapplied_; }
  uint64_t steps_by_window() const { return steps_by_window_; }

 private:
  struct Bucket {
    bool initialised = false;
    uint64_t first_version = 0;
    std::vector<uint64_t> values;  ///< of each version from first_version on
    uint64_t window = 0;           ///< latest step with a window
    uint64_t ended_window = 0;     ///< latest step with a window that has ended before it
    uint64_t version() const { return first_version + values.size() - 1; }
  };
  struct Progress {
    uint64_t arrived_step = 0;  ///< latest push the protocol was shown while the worker was a member
    uint64_t applied_step = 0;
    uint64_t staleness = 0;
    uint64_t joined_version = 0;
    uint64_t version_answered = 0;
    uint64_t version_seen = 0;
  };
  struct Shard {
    std::map<WorkerIndex, uint64_t> members;  ///< incarnation
    std::vector<bool> departed;
    std::vector<Bucket> buckets;
  };

  Bucket& at(uint32_t shard, uint32_t bucket) { return shards_[shard].buckets[bucket]; }
  const Bucket& at(uint32_t shard, uint32_t bucket) const { return shards_[shard].buckets[bucket]; }
  void check_contributor(const Action& action, const Piece& piece, const Slot& slot, uint64_t version_before);
  void check_expected_set(const Action& action, const Shard& shard, size_t absent_count);
  void check_window(const Action& action, const Shard& shard, size_t absent_count);
  void check_ahead(const Action& action, uint32_t shard);

  const Plan& plan_;
  std::vector<Shard> shards_;
  std::map<Piece, Progress> progress_;
  std::set<std::tuple<WorkerIndex, uint64_t, uint32_t>> arrived_;
  std::set<std::pair<Piece, uint64_t>> applied_;
  std::set<std::pair<Piece, uint64_t>> absent_;  ///< took part in the step without a gradient
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> initial_values_;
  uint64_t answered_unapplied_ = 0;
  uint64_t steps_by_window_ = 0;  ///< applied without a worker that might still have come
  std::string failure_;
};

}  // namespace gradrail::ps::simulation
