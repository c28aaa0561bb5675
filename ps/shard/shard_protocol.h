#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/mode.h"
#include "ps/replication/bucket_state.h"

namespace gradrail::ps {

/// The arrival of a worker's slot header. The payload stays in its memory.
struct Arrival {
  WorkerIndex worker = 0;
  uint64_t incarnation = 0;
  ArrivalKind kind{};
  uint32_t bucket = 0;
  uint64_t step = 0;
  uint64_t base_version = 0;
};

/// An action of the shard. A decision is a list of them, in the order in which they are carried out.
struct Action {
  enum class Kind : uint8_t {
    initialise,    ///< copy `contributors[0]`'s payload into the parameters of `bucket`
    apply,         ///< average the contributors' payloads (ascending worker order) and update `bucket`, once; without
                   ///< a contributor only its version changes
    answer,        ///< send parameters of `bucket` and a ReturnHeader to `worker`
    refuse,        ///< end `worker`'s data connection: `reason`
    begin_window,  ///< call on_window_end() with `bucket` and `step` after the grace window, which may have no length
  };
  Kind kind{};
  uint32_t bucket = 0;
  WorkerIndex worker = 0;
  uint64_t step = 0;
  uint64_t version = 0;
  uint64_t staleness = 0;
  bool dropped = false;    ///< answer: the gradient was too late, or was not expected, and is not applied
  uint64_t next_step = 0;  ///< ssp, answer to a pull or an offer: the step that the worker may push next
  absl::InlinedVector<WorkerIndex, 8> contributors;
  std::string reason;
};
using Actions = std::vector<Action>;

/// The decisions of one shard: which gradients are applied, when, and which workers are answered. Pure: no thread,
/// clock, socket or random source; the same calls give the same actions, so that it can be simulated from a seed.
///
/// Invariants
///   1. A (worker, incarnation, step, bucket) is applied at most once, however often it arrives. When it arrives again
///      after its update, it is answered again.
///   2. A worker that is not a member (never added, removed, or an old incarnation) changes nothing.
///   3. Per bucket and incarnation, steps are applied in order without gaps: first_step, first_step + 1, …
///   4. sync: a step of a bucket is applied once, when all expected workers have pushed it. quorum: when `bound` of
///      them have, or all of fewer. Contributors ascend. A later gradient of the step is answered and not applied.
///      A late gradient must not wait for the next step: workers that wait for each other in different buckets would
///      never continue. Unless late gradients are dropped, the worker pushes it again in the next step, in which it is
///      absent from all other buckets.
///      An absent worker of step s waits until the bucket has the version s. In each of these steps it counts as one
///      that has pushed, and is no contributor. A step has a contributor, because one without it could make the
///      gradient of another worker late. If all expected workers are absent, the bucket follows to their lowest step.
///      Grace: a step that has enough stays open once. It is applied when all members that are expected have pushed or
///      are absent, or when its window has ended. After the end of its window the step is not held open again, also if
///      it has lost a push meanwhile. A window belongs to one step of one bucket: the end of an earlier one changes
///      nothing.
///   5. Nothing is applied to a bucket before it is initialized. Pulls and pushes wait and are answered afterwards.
///   6. Only members are answered, for the latest step that they sent on that bucket over their present connection.
///   7. ssp: a worker that has pushed step s of a bucket is answered when all expected workers have pushed its step
///      s - bound. The answer is the permission to begin the next step: no worker gets further ahead.
///
/// Steps     async: each incarnation counts from 1. ssp: the same, but a late incarnation begins at the slowest step.
///           sync, quorum: the steps of the bucket; the next one is its version + 1. Only pushes are counted.
///           The step of a pull or an initialise is echoed and may be any number.
/// Expected  Not in async: workers 0 … worker_count-1 from the start, and each added worker from its first arrival,
///           until it is removed. A worker that is added and has no data path yet therefore holds up no other one.
/// Joining   sync, quorum: a worker that joins late, again or as a new incarnation is expected from the next
///           step of every bucket. Buckets may be one step apart at that moment. The first arrival is a pull or an
///           offer. The answers to it name the step after their versions. The worker begins with the smallest one of
///           all shards. Each fragment of the model has its own step. From then on each bucket waits for it (in
///           quorum the others may continue). Where that step is already applied, the push is answered at
///           once and dropped. While the answers' versions are ahead of its step, the worker may continue at their
///           smallest + 1.
///           ssp: the same, by the slowest worker's steps at the first arrival. The first push of an incarnation may be
///           of an earlier step than its place in a bucket. A member of the former primary may also begin at a later
///           step. The floor of that primary rises with a departure, and the backup receives it with the next update.
/// Refusals  Name worker, bucket, step and the expected step. Nothing is applied. The connection ends, and the waiting
///           pushes of the worker are dropped as in reconnect_worker().
/// Threads   Owner thread of the shard.
class ShardProtocol {
 public:
  /// `initial_version`: updates already in the parameters (restored from a checkpoint); `initialised`: whether the
  /// parameters have values. Without values there are no updates: initial_version is 0.
  ShardProtocol(Mode mode, uint32_t bucket_count, bool initialised, uint64_t initial_version);

  /// Sets the number of updates that a checkpoint of this bucket has. Called before the first member is added.
  void set_version(uint32_t bucket, uint64_t version) { buckets_[bucket].version = version; }

  /// Allows the worker to send from now on; it is expected from its first arrival on. A live earlier incarnation of it
  /// is replaced: its waiting pushes are dropped, and it cannot be added again. The incarnation that was removed last
  /// continues where it was, and is expected immediately if it had arrived. Adding a live incarnation changes nothing.
  void add_worker(WorkerIndex worker, uint64_t incarnation);

  /// Adds a member of the former primary in a takeover. That primary may have placed it at a later step than the state
  /// that this backup has. It is expected immediately.
  void add_former_member(WorkerIndex worker, uint64_t incarnation);

  /// The worker has left (its steps are done) or was lost: it is no longer expected, and its waiting pushes are
  /// dropped. Appends the actions that this completes. Ignored unless the incarnation is current.
  void remove_worker(WorkerIndex worker, uint64_t incarnation, Actions& actions);

  /// Stops the wait for the worker until it is added (again). Ignored while it is a live member.
  void stop_expecting_worker(WorkerIndex worker, Actions& actions);

  /// The worker's steps are done: it is no longer expected, but stays a member, which may still pull. A further step is
  /// refused. Ignored unless the incarnation is current.
  void mark_worker_finished(WorkerIndex worker, uint64_t incarnation, Actions& actions);

  /// The incarnation has lost its connection and may return: it then repeats what is unanswered. To be called before
  /// the slots of the old connection end: its waiting pushes are dropped, because an apply must not read their payload.
  /// Nothing is answered before the repetition. A second call does no harm.
  void reconnect_worker(WorkerIndex worker, uint64_t incarnation);

  /// Appends what follows from one arrival.
  void on_arrival(const Arrival& arrival, Actions& actions);

  /// The update of a lone push, and its answer.
  struct LonePush {
    uint64_t version = 0;
    uint64_t staleness = 0;
  };
  /// The short way of a push that is applied alone and answered at once: in async, and in sync and quorum without
  /// grace if its worker is the only expected one. It has the effect of on_arrival() with the actions apply and answer.
  /// nullopt: the push needs on_arrival(), and nothing has changed.
  std::optional<LonePush> on_lone_push(const Arrival& push);

  /// The grace window of this step has ended: the step is applied with the pushes that it has. Ignored if the step is
  /// not the next one of the bucket.
  void on_window_end(uint32_t bucket, uint64_t step, Actions& actions);

  /// Write and read the state for a backup. A takeover begins without windows: the workers repeat their pushes. The
  /// import leaves membership unchanged: the shard that takes over adds the
  /// live members again and removes those that have left. No push may wait on a bucket that is imported.
  void export_bucket(uint32_t bucket, BucketState& state) const;
  void import_bucket(uint32_t bucket, const BucketState& state);

  bool initialised() const;
  uint64_t version(uint32_t bucket) const { return buckets_[bucket].version; }
  /// Lowest step that is not yet applied to the bucket (ssp: by the slowest worker), from 1.
  uint64_t next_step(uint32_t bucket) const;
  /// The lowest one of all buckets. A shard without buckets returns 1 and has no part in a minimum over shards.
  uint64_t next_step() const;
  bool is_member(WorkerIndex worker, uint64_t incarnation) const;
  /// The last step of an incarnation that is done in the bucket. The incarnation may have been removed. None: it is not
  /// known, or another one has replaced it.
  std::optional<uint64_t> done_step(WorkerIndex worker, uint64_t incarnation, uint32_t bucket) const;
  /// Expected workers without a push of the bucket's next step, also those that never joined; for messages. ssp:
  /// the slowest workers, while another one waits for them.
  std::vector<WorkerIndex> waiting_for(uint32_t bucket) const;

 private:
  friend class StateReader;  // tests/ps/prove

  /// A worker on a bucket.
  struct Exchange {
    bool waiting = false;
    ArrivalKind kind{};  ///< kind of the waiting request
    uint64_t step = 0;
    uint64_t base_version = 0;
    uint64_t done_step = 0;       ///< latest push answered
    uint64_t done_staleness = 0;  ///< staleness for repeated answers
    bool done_dropped = false;    ///< flag for repeated answers
    bool withheld = false;        ///< ssp: done, and not yet answered
    bool fresh = true;            ///< ssp: nothing was pushed yet; done_step is only where it begins

    /// ssp: its answer is withheld, and may be sent.
    bool is_due(uint64_t slowest, uint32_t bound) const;
  };
  struct Member {
    bool known = false;  ///< it was added, or imported; otherwise the other fields have no meaning
    uint64_t incarnation = 0;
    bool live = false;                ///< a removed member keeps its steps: it may return and repeat them
    bool arrived = false;             ///< it has sent something: its data path works
    bool finished = false;            ///< its steps are done
    bool former = false;              ///< member of the former primary: it may begin at a later step than the floor
    std::vector<uint64_t> replaced;   ///< earlier incarnations
    std::vector<Exchange> exchanges;  ///< exchange of each bucket
  };
  struct Members {
    const Member* find(WorkerIndex worker) const {
      return worker < list.size() && list[worker].known ? &list[worker] : nullptr;
    }
    Member& add(WorkerIndex worker);
    /// ssp: An expected worker that has not joined has pushed nothing: the others wait for its step 0 + `bound`.
    uint64_t done_step(WorkerIndex worker, uint32_t bucket) const;
    /// Calls `call(worker, member)` for each known member. Ascending: sums run in worker order.
    template <typename Self, typename Call>
    static void each(Self& self, const Call& call) {
      for (WorkerIndex worker = 0; worker < self.list.size(); ++worker) {
        if (self.list[worker].known) call(worker, self.list[worker]);
      }
    }

    std::vector<Member> list;  ///< indexed by worker
  };
  enum class Window : uint8_t { none, open, ended };
  struct Bucket {
    uint64_t version = 0;
    bool initialised = false;
    uint32_t waiting_count = 0;  ///< sync, quorum: workers that take part in step version + 1
    uint32_t push_count = 0;     ///< number of them with a gradient
    uint64_t floor = 0;          ///< ssp: step that all expected workers have pushed; never decreases
    Window window{};             ///< quorum: of step version + 1
    // ssp: results are stored, because a search of all workers for each push would be quadratic.
    uint64_t slowest = 0;         ///< slowest_step(), while slowest_count > 0
    uint32_t slowest_count = 0;   ///< expected workers at that step; 0: unknown
    uint64_t answered_until = 0;  ///< slowest step for which all withheld answers were looked at last
  };

  Member* find(WorkerIndex worker, uint64_t incarnation);
  uint64_t follow_slowest(uint32_t bucket);
  void expect(WorkerIndex worker);
  bool is_expected(WorkerIndex worker) const { return worker < expected_.size() && expected_[worker]; }
  void begin_part(WorkerIndex worker, Member& member);
  void stop_expecting(WorkerIndex worker, Actions& actions);
  uint32_t enough() const;
  uint32_t present_count() const;
  uint64_t slowest_step(uint32_t bucket) const;
  void keep_waiting(Exchange& exchange, const Arrival& arrival);
  void drop(Exchange& exchange, uint32_t bucket);
  void drop_all(Member& member);

  void on_initialise(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void on_pull(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void on_push(Member& member, const Arrival& arrival, Actions& actions);
  void on_single_push(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void on_summed_push(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void apply_one(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void answer_or_withhold(Exchange& exchange, const Arrival& arrival, Actions& actions);
  void answer_done(const Exchange& exchange, const Arrival& arrival, Actions& actions) const;
  void complete_step(uint32_t bucket, Actions& actions);
  bool stays_open(uint32_t bucket, Actions& actions);
  void apply_step(uint32_t bucket, Actions& actions);
  uint64_t lowest_waiting_step(uint32_t bucket) const;
  void answer_step(uint32_t bucket, uint64_t version_before, Actions& actions);
  void answer_withheld(uint32_t bucket, Actions& actions);
  void answer_waiting(uint32_t bucket, Actions& actions);
  void refuse(const Arrival& arrival, std::string_view why, Actions& actions);
  void answer(const Arrival& arrival, Actions& actions) const;

  Mode mode_;
  std::vector<Bucket> buckets_;
  Members members_;
  std::vector<bool> expected_;   ///< not async: indexed by worker
  uint32_t expected_count_ = 0;  ///< number of true in expected_
};

}  // namespace gradrail::ps
