#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "ps/exchange_layout.h"

namespace gradrail::ps {

using WorkerIndex = uint32_t;

enum class ModeKind : uint8_t {
  async,   ///< each gradient is applied as it comes
  sync,    ///< the gradients of a step are averaged and applied once
  ssp,     ///< as async, but nobody runs more than `bound` steps ahead of the slowest
  backup,  ///< as sync, without waiting for the last `bound` gradients of a step; these are dropped
};

/// Source  ssp: Ho et al., NeurIPS 2013 (stale synchronous parallel). backup: Chen et al., ICLR workshop 2016.
struct Mode {
  ModeKind kind = ModeKind::async;
  /// Tasks 0 … worker_count-1 are waited for from the start, but in async; others may join, and who has left or was
  /// lost is not waited for any more.
  uint32_t worker_count = 1;
  uint32_t bound = 0;

  /// A step is applied once, for everybody: its number is the version it makes.
  bool sums() const { return kind == ModeKind::sync || kind == ModeKind::backup; }
  /// Somebody may have to be waited for.
  bool waits() const { return kind != ModeKind::async; }
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
  bool dropped = false;  ///< answer: to a gradient that came too late, or was not expected; it counts for nothing
  absl::InlinedVector<WorkerIndex, 8> contributors;
  std::string reason;
};
using Actions = std::vector<Action>;

/// What somebody who goes on in place of a shard must know of one of its buckets: which pushes are done. Those that
/// wait are not among it; whoever is unanswered repeats them.
struct BucketState {
  struct Done {
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
    uint64_t step = 0;
    uint64_t staleness = 0;
    bool dropped = false;
    bool fresh = true;
    bool operator==(const Done&) const = default;
  };
  uint64_t version = 0;
  uint64_t floor = 0;
  bool initialised = false;
  std::vector<Done> done;  ///< of everybody who was ever a member, the last incarnation; ascending
};

/// The decisions of one shard: what is applied, when, and who is answered. Pure: no thread, clock, socket or random
/// source; the same calls give the same actions, so that it can be simulated from a seed.
///
/// Invariants
///   1. A (worker, incarnation, step, bucket) is applied at most once, however often it arrives; a repeated one whose
///      update was applied is answered again.
///   2. A worker that is not a member (never added, removed, or an old incarnation) changes nothing.
///   3. Per bucket and incarnation, steps are applied in order without gaps: first_step, first_step + 1, …
///   4. sync, backup: a step of a bucket is applied once, when all that are expected have pushed it, in backup all but
///      `bound` of them; contributors ascend. Whose gradient comes later is answered and counts for nothing.
///   5. Before a bucket is initialised nothing is applied to it; pulls and pushes wait and are answered after.
///   6. Answers go only to members, for the latest step they sent on that bucket.
///   7. ssp: a worker that has pushed step s of a bucket is answered when everybody expected has pushed step s - bound
///      of it. An answer is the leave to begin the next step: nobody gets further ahead.
///
/// Steps     async: counted from 1 by each incarnation. ssp: likewise, but a late one begins where the slowest is.
/// sync,
///           backup: those of the bucket, its version + 1 is the next one. Only pushes are counted; the step of a pull
///           or an initialise is echoed and may be anything.
/// Expected  Not in async: workers 0 … worker_count-1 from the start, and whoever has been added, until it is removed.
/// Joining   sync, backup: a worker that joins late, again or as a new incarnation is expected from the next step of
///           every bucket. Buckets may be one step apart at that moment, so it begins with the smallest next_step() of
///           all shards, asked after it was added to all of them: no bucket runs away from then on, since each waits
///           for it (in backup they may). Where that step is already applied, the push is answered at once and
///           dropped. While the answers' versions are ahead of its step it may go on at the smallest of them + 1.
///           ssp: the same, by the slowest worker's steps; the first push of an incarnation may be of an earlier step
///           than its place in a bucket.
/// Refusals  Name worker, bucket, step and the step expected. Nothing is applied; since the connection ends, what the
///           worker has waiting is dropped as in reconnect_worker().
/// Threads   Owner thread of the shard.
class ShardProtocol {
 public:
  /// `initial_version`: updates already in the parameters (restored from a checkpoint); `initialised` says whether
  /// the parameters hold values. Without values there are no updates: initial_version is 0.
  ShardProtocol(Mode mode, uint32_t bucket_count, bool initialised, uint64_t initial_version);

  /// A worker may send from now on. A live earlier incarnation of it is replaced: nothing of it is applied any more,
  /// and what it had pushed without being applied is dropped; it cannot be added again. Adding the incarnation that was
  /// removed last lets it go on where it was; adding a live one changes nothing.
  /// Its first step is next_step(); async: 1.
  void add_worker(WorkerIndex worker, uint64_t incarnation);

  /// The worker has said goodbye (its steps are done) or was lost. Appends what that sets free: it is not waited for
  /// any more; its un-applied pushes are dropped. Ignored unless the incarnation is current.
  void remove_worker(WorkerIndex worker, uint64_t incarnation, Actions& actions);

  /// Nobody waits for that worker unless it is added (again). Ignored while it is a live member.
  void forgo_worker(WorkerIndex worker, Actions& actions);

  /// The worker's steps are done: it is not waited for any more, but stays a member, which may still pull. A further
  /// step of it is refused. Ignored unless the incarnation is current.
  void excuse_worker(WorkerIndex worker, uint64_t incarnation, Actions& actions);

  /// The same incarnation lost its connection and comes back, perhaps: it will repeat what is unanswered. To be called
  /// as soon as the slots of the old connection go, at the loss or at the return (both do no harm): what waits is
  /// dropped, since an apply must not read a payload that is not there any more.
  void reconnect_worker(WorkerIndex worker, uint64_t incarnation);

  /// Appends what follows from one arrival.
  void on_arrival(const Arrival& arrival, Actions& actions);

  /// For a standby. Importing leaves membership alone: whoever takes over adds the live members again, and removes
  /// those who have left. A bucket that is imported has nobody waiting.
  void export_bucket(uint32_t bucket, BucketState& state) const;
  void import_bucket(uint32_t bucket, const BucketState& state);

  bool initialised() const;
  uint64_t version(uint32_t bucket) const { return buckets_[bucket].version; }
  /// Lowest step that is still to be made of any bucket (ssp: by the slowest), from 1. A shard without buckets says 1
  /// and has no voice in a minimum over shards.
  uint64_t next_step() const;
  bool is_member(WorkerIndex worker, uint64_t incarnation) const;
  /// Workers expected whose push of `bucket`'s next step is missing (also those that never joined), for messages to
  /// people. ssp: the slowest, while somebody waits for them.
  std::vector<WorkerIndex> waiting_for(uint32_t bucket) const;

 private:
  struct Exchange {  ///< of one worker on one bucket
    bool waiting = false;
    ArrivalKind kind{};  ///< of what waits
    uint64_t step = 0;
    uint64_t base_version = 0;
    uint64_t done_step = 0;       ///< latest push answered
    uint64_t done_staleness = 0;  ///< for repeated answers
    bool done_dropped = false;    ///< for repeated answers
    bool held = false;            ///< ssp: done, and not yet answered
    bool fresh = true;            ///< ssp: nothing pushed yet, done_step is a place to begin
  };
  struct Member {
    uint64_t incarnation = 0;
    bool live = false;                ///< a removed one keeps its steps, lest it comes back and repeats them
    bool excused = false;             ///< its steps are done
    std::vector<uint64_t> replaced;   ///< earlier incarnations
    std::vector<Exchange> exchanges;  ///< per bucket
  };
  using Members = std::map<WorkerIndex, Member>;  ///< ordered: sums run in worker order
  struct Bucket {
    uint64_t version = 0;
    bool initialised = false;
    uint32_t waiting_push_count = 0;  ///< sync, backup: all of them are of step version + 1
    uint64_t floor = 0;               ///< ssp: step that everybody expected has pushed; never falls
  };

  Member* find(WorkerIndex worker, uint64_t incarnation);
  void expect(WorkerIndex worker);
  void stop_expecting(WorkerIndex worker, Actions& actions);
  uint32_t enough() const;
  uint64_t slowest_step(uint32_t bucket) const;
  void hold(Exchange& exchange, const Arrival& arrival);
  void drop(Exchange& exchange, uint32_t bucket);
  void drop_all(Member& member);

  void on_initialise(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void on_pull(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void on_push(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void on_single_push(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void on_summed_push(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void apply_one(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void acknowledge(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void answer_done(const Exchange& exchange, const Arrival& arrival, Actions& actions) const;
  void settle(uint32_t bucket, Actions& actions);
  void release(uint32_t bucket, Actions& actions);
  void answer_waiting(uint32_t bucket, Actions& actions);
  void refuse(const Arrival& arrival, std::string_view why, Actions& actions);
  void answer(const Arrival& arrival, Actions& actions) const;

  Mode mode_;
  std::vector<Bucket> buckets_;
  Members members_;
  std::vector<bool> expected_;   ///< not async, per worker
  uint32_t expected_count_ = 0;  ///< of them
};

}  // namespace gradrail::ps
