#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ps/shard/shard_protocol.h"
#include "tests/ps/prove/config.h"

namespace gradrail::ps::prove {

/// A push, a pull or an offer of initial values. In a slot it stands for the payload.
struct Push {
  uint64_t incarnation = 0;
  ArrivalKind kind{};
  uint64_t step = 0;
  uint64_t base_version = 0;
};

/// The pushes of one worker to one bucket, as one shard has used them.
struct Progress {
  uint64_t incarnation = 0;
  uint64_t applied = 0;  ///< bit s: step s is part of the parameters, or the worker was absent from it
  uint64_t arrived = 0;  ///< latest push since the worker became a member here
  uint64_t staleness = 0;
  uint64_t joined_version = 0;
};

/// The parameters of one bucket, as the set of gradients that they contain.
struct BucketLedger {
  uint64_t version = 0;
  bool is_initialised = false;
  std::vector<Progress> workers;
};

/// Checks each decision of one shard against an independent model. Each check returns "" or the violation.
struct ShardLedger {
  std::vector<BucketLedger> buckets;
  std::vector<uint64_t> members;  ///< per worker: incarnation, 0: no member
  std::vector<uint64_t> arrived;  ///< per worker: the incarnation that has sent something
  std::vector<bool> expected;     ///< per worker: steps wait for it
  std::vector<bool> removed;      ///< per worker: it was removed, and may have joined again
  /// The latest steps of a bucket with a grace window that has begun, or has ended in time. A backup does not get them.
  struct Window {
    uint64_t begun = 0;
    uint64_t ended = 0;
  };
  std::vector<Window> windows;

  explicit ShardLedger(const Config& config);
  bool is_member(WorkerIndex worker, uint64_t incarnation) const { return members[worker] == incarnation; }
  /// `is_expected`: false when its steps are done. Steps wait for an incarnation from its first arrival on.
  void add(WorkerIndex worker, uint64_t incarnation, bool is_expected);
  void arrive(WorkerIndex worker, bool is_expected);
  void remove(WorkerIndex worker);
  bool has_applied(WorkerIndex worker, uint64_t incarnation, uint32_t bucket, uint64_t step) const;

  std::string initialise(const Action& action, const std::vector<std::optional<Push>>& slots);
  /// `slots`: per contributor the payload in its slot; nothing: the slot ended with its connection. `absent`: workers
  /// that take part in the step without a gradient.
  std::string apply(const Action& action, const std::vector<std::optional<Push>>& slots,
                    const std::vector<WorkerIndex>& absent, const Mode& mode);
  std::string answer(const Action& action, const Mode& mode) const;
  /// ssp: the last step that may be answered now. Nothing: a worker has joined again and its step is not known.
  std::optional<uint64_t> permitted_step(uint32_t bucket, const Mode& mode) const;
  std::string begin_window(const Action& action);
  void end_window(uint32_t bucket) { windows[bucket].ended = buckets[bucket].version + 1; }
  /// The window of the next step is open.
  bool has_window(uint32_t bucket) const {
    const uint64_t step = buckets[bucket].version + 1;
    return windows[bucket].begun == step && windows[bucket].ended != step;
  }

 private:
  std::string check_contributors(const Action& action, size_t absent_count, const Mode& mode) const;
  std::string check_order(const Action& action, const Progress& progress, const Mode& mode) const;
  std::string check_bound(const Action& action, const Mode& mode) const;
  std::optional<uint64_t> reached_step(WorkerIndex worker, uint32_t bucket) const;
};

}  // namespace gradrail::ps::prove
