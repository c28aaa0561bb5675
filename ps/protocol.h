#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "ps/exchange_layout.h"

namespace gradrail::ps {

using WorkerIndex = uint32_t;

enum class ModeKind : uint8_t { async, sync };  // ssp and backup take their place here

struct Mode {
  ModeKind kind = ModeKind::async;
  /// sync: tasks 0 … worker_count-1 all take part in each step. async: not used.
  uint32_t worker_count = 1;
};

/// What a worker's header says has arrived; the payload stays where it is.
struct Arrival {
  WorkerIndex worker = 0;
  uint64_t incarnation = 0;
  ArrivalKind kind{};
  uint32_t bucket = 0;
  uint64_t step = 0;
  uint64_t base_version = 0;
};

/// What the shard has to do, in this order.
struct Action {
  enum class Kind : uint8_t {
    initialise,  ///< copy `contributors[0]`'s payload into the parameters of `bucket`
    apply,       ///< average the contributors' payloads (ascending worker order) and update `bucket`, once
    answer,      ///< send parameters of `bucket` and a ReturnHeader to `worker`
    refuse,      ///< end `worker`'s data connection: `reason`
  };
  Kind kind{};
  uint32_t bucket = 0;
  WorkerIndex worker = 0;
  uint64_t step = 0;
  uint64_t version = 0;
  uint64_t staleness = 0;
  absl::InlinedVector<WorkerIndex, 8> contributors;
  std::string reason;
};
using Actions = std::vector<Action>;

/// The decisions of one shard: what is applied, when, and who is answered. Pure: no thread, clock, socket or random
/// source; the same calls give the same actions, so that it can be simulated from a seed.
///
/// Invariants
///   1. A (worker, incarnation, step, bucket) is applied at most once, however often it arrives; a repeated one whose
///      update was applied is answered again.
///   2. A worker that is not a member (never added, removed, or an old incarnation) changes nothing.
///   3. Per bucket and incarnation, steps are applied in order without gaps: first_step, first_step + 1, …
///   4. sync: a step of a bucket is applied when every member still expected has pushed it; contributors ascend.
///   5. Before a bucket is initialised nothing is applied to it; pulls and pushes wait and are answered after.
///   6. Answers go only to members, for the latest step they sent on that bucket.
/// Threads   Owner thread of the shard.
class ShardProtocol {
 public:
  /// `initial_version`: updates already in the parameters (restored from a checkpoint); `initialised` says whether
  /// the parameters hold values.
  ShardProtocol(Mode mode, uint32_t bucket_count, bool initialised, uint64_t initial_version);

  /// A worker may send from now on. A live earlier incarnation of it is replaced: nothing of it is applied any more,
  /// and what it had pushed without being applied is dropped.
  /// sync: its first step is next_step(); async: 1.
  void add_worker(WorkerIndex worker, uint64_t incarnation);

  /// The worker has said goodbye (its steps are done) or was lost. Appends what that sets free: in sync a worker that
  /// left is not waited for any more; its un-applied pushes are dropped. Ignored unless the incarnation is current.
  void remove_worker(WorkerIndex worker, uint64_t incarnation, Actions& actions);

  /// The same incarnation lost its connection and came back: it will repeat what is unanswered.
  void reconnect_worker(WorkerIndex worker, uint64_t incarnation);

  /// Appends what follows from one arrival.
  void on_arrival(const Arrival& arrival, Actions& actions);

  bool initialised() const;
  uint64_t version(uint32_t bucket) const { return buckets_[bucket].version; }
  /// Step that sync expects next on bucket 0, counted from 1.
  uint64_t next_step() const { return buckets_.empty() ? 1 : buckets_[0].version + 1; }
  bool is_member(WorkerIndex worker, uint64_t incarnation) const;
  /// sync: members whose push of `bucket`'s next step is missing, for messages to people.
  std::vector<WorkerIndex> waiting_for(uint32_t bucket) const;

 private:
  struct Pending {  ///< the latest unanswered arrival of one worker on one bucket
    bool waiting = false;
    ArrivalKind kind{};
    uint64_t step = 0;
    uint64_t base_version = 0;
  };
  struct Member {
    uint64_t incarnation = 0;
    uint64_t first_step = 1;
    std::vector<uint64_t> applied_step;    ///< per bucket: last step applied or answered
    std::vector<uint64_t> last_staleness;  ///< per bucket: for repeated answers
    std::vector<Pending> pending;          ///< per bucket
  };
  struct Bucket {
    uint64_t version = 0;
    bool initialised = false;
  };

  void on_push(Member& member, const Arrival& arrival, Actions& actions);
  void settle(uint32_t bucket, Actions& actions);

  Mode mode_;
  std::vector<Bucket> buckets_;
  std::map<WorkerIndex, Member> members_;  ///< ordered: sums run in worker order
  std::vector<bool> departed_;             ///< sync: expected no more
};

}  // namespace gradrail::ps
