#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradrail/clock.h"
#include "ps/protocol/control_channel.h"
#include "ps/protocol/mode.h"

namespace gradrail::ps {

/// The workers of a run in the view of one ps task: present, absent or lost, and whether the run continues. A pure
/// state machine: it has no clock, lock, thread or socket, so that a test can run hours of it in microseconds.
///
/// Invariants
///   1. At most one incarnation of a worker is live.
///   2. An aborted run stays aborted, with its first cause.
///   3. A barrier of one generation completes once; it does not wait for a worker that has left or was lost.
///   4. The epoch counts changes of the membership: each join, leave and loss begins another one.
/// Threads  The caller's lock (ControlState::mutex).
class Membership {
 private:
  friend class StateReader;  // tests/ps/prove

  enum class Phase : uint8_t { live, left, lost, away };

 public:
  struct Options {
    std::vector<std::string> worker_names;  ///< names in the cluster specification, in task order
    Duration heartbeat_timeout =
        std::chrono::seconds(4);                       ///< time until a live member is silent, at kShortestHeartbeat
    uint32_t min_workers = 1;                          ///< a loss that leaves fewer aborts the run
    Duration return_limit = std::chrono::seconds(30);  ///< time for a return after the last worker was lost
    Duration away_limit = std::chrono::seconds(90);    ///< time for a return from the search for a lost ps
  };
  explicit Membership(Options options) : options_(std::move(options)) {}

  /// Makes an incarnation of a worker a live member. Repeating it is harmless.
  /// Errors   ABORTED: the run is over. ALREADY_EXISTS: another incarnation is live, because a task index was
  ///          given twice, or because the loss of the predecessor is not detected yet (retry then).
  absl::Status join(WorkerIndex worker, uint64_t incarnation, const std::string& name, TimePoint now);

  /// Records a message of a member. A `now` in the future postpones its silence limit.
  /// Errors   NOT_FOUND: not a live member (lost, left, or replaced). OUT_OF_RANGE: lost by silence, and the run still
  ///          waits for it: join again. UNAVAILABLE: the member is away, or it has never joined this process: it means
  ///          the ps process that ran here before.
  absl::Status heard(WorkerIndex worker, uint64_t incarnation, TimePoint now);

  /// The interval from `now` to the next ping of a member. Several members of a large run ping at the same time: one
  /// wake-up of the server then serves them all. The member's limit of silence is longer from now on, by the difference
  /// to the shortest interval. The member may then pause for as long as in a small run.
  Duration plan_ping(WorkerIndex worker, uint64_t incarnation, TimePoint now);
  /// Whether it is live, no other member is live or away, and the run continues.
  bool is_last(WorkerIndex worker, uint64_t incarnation) const;
  /// Removes a member that has finished: it is live, or was lost by silence within its limit. Ignored for other
  /// incarnations.
  void leave(WorkerIndex worker, uint64_t incarnation);
  /// Declares a member lost; `cause` is not empty. Returns false if it was not a live member.
  bool mark_lost(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now);

  /// The member searches for a ps that it has lost, and joins again afterwards. Otherwise as mark_lost().
  bool mark_away(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now);

  /// All servers can be reached again: absent members now have the shorter return limit.
  void on_servers_back(TimePoint now);
  /// Records that this process was suspended for `gap`, in which it could receive no message.
  void add_pause(Duration gap);
  /// A lost member was silent, and may sit behind a network partition. It retries for the away limit, so the run waits
  /// as long: also after the other members have finished.
  void mark_silent(WorkerIndex worker, uint64_t incarnation, TimePoint now);

  /// Aborts the run. False when it is aborted already: the first cause stays.
  bool abort_run(const std::string& cause);

  struct Member {
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
  };
  std::vector<Member> live() const;
  /// The incarnation has finished, and was not lost.
  bool has_left(WorkerIndex worker, uint64_t incarnation) const;

  /// A worker that has joined at some time, as the backup needs it for restore().
  struct Known {
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
    std::string name;
    /// "": live, or away: the backup awaits it as well; kLeft: it has finished; otherwise the cause of its loss.
    std::string departed;
  };
  static constexpr const char* kLeft = "left";
  std::vector<Known> known_members() const;
  /// Members that were lost and have not returned. A member that is away is none of them.
  std::vector<Known> lost_members() const;
  bool has_joined(WorkerIndex worker) const { return workers_.contains(worker); }
  /// Takes over the members of the former primary. A live one has the return limit to contact this task. A worker with
  /// another live incarnation here keeps that.
  void restore(const std::vector<Known>& members, TimePoint now);

  struct Silent {
    Member member;
    Duration limit;
  };
  /// Live members without a message for longer than their silence limits; the caller declares them lost.
  std::vector<Silent> silent_members(TimePoint now) const;

  /// Enters a barrier; repeating it is harmless.
  void enter_barrier(const std::string& name, uint64_t generation, WorkerIndex worker, uint64_t incarnation);
  /// The workers that this barrier waits for, at most `most`. `live_only`: the live members are awaited, else also the
  /// workers of the specification that have not joined.
  std::vector<WorkerIndex> missing_at(const std::string& name, uint64_t generation, bool live_only, size_t most) const;
  /// Names of the workers that this barrier waits for. The last entry beyond `most` has the number of the others.
  std::vector<std::string> barrier_missing(const std::string& name, uint64_t generation, bool live_only,
                                           size_t most = SIZE_MAX) const;

  std::vector<std::string> live_names() const;
  std::string name_of(WorkerIndex worker) const;
  /// Cause of the abort; "" while the run continues.
  const std::string& aborted() const { return aborted_; }
  /// The lowest worker that is live or may still join. It initializes parameters and saves checkpoints.
  WorkerIndex chief() const;
  uint64_t epoch() const { return epoch_; }
  size_t live_count() const { return in(Phase::live).size(); }
  /// Whether a member is live or away.
  bool expects_members() const { return live_count() + in(Phase::away).size() > 0; }
  /// The run is older than this process: a worker that has not joined may have finished before. It is waited for no
  /// longer than the return limit.
  void mark_continued(TimePoint now) { missing_until_ = std::min(missing_until_, now + options_.return_limit); }
  bool is_continued() const { return missing_until_ != TimePoint::max(); }
  /// Records that there are parameters to save: an absent worker is the chief no longer than the return limit.
  void mark_initialised(TimePoint now) { chief_until_ = std::min(chief_until_, now + options_.return_limit); }
  /// Workers that are not waited for, because they have left or were lost.
  std::vector<WorkerIndex> departed() const;
  /// Expires members that have been absent for longer than the away limit. In a continued run it also expires workers
  /// that have not joined within the return limit. True when there was one.
  bool expire_absent(TimePoint now);
  /// Aborts a run if its last worker was lost and no worker has returned in time.
  void abort_if_deserted(TimePoint now);
  /// Whether no member is live and the last one was lost.
  bool deserted() const { return live_count() == 0 && !last_loss_.empty(); }
  /// Whether every worker of the specification has joined, all members have left and none may return; or the run is
  /// aborted and no member is live.
  bool finished() const;
  /// Names of the workers that are away, or were lost by silence, within their limit.
  std::vector<std::string> may_return() const;
  /// Names of the workers of the specification that have never joined.
  std::vector<std::string> never_joined() const;

 private:
  struct Worker {
    uint64_t incarnation = 0;
    std::string name;
    Phase phase = Phase::live;
    TimePoint heard;           ///< time of the last message; away, silent: begin of the absence
    bool is_expected = false;  ///< was live at the former primary, and has not contacted this task yet
    bool is_silent = false;    ///< lost by silence, and within the away limit
    std::string cause;         ///< lost, away: why
    std::map<std::string, uint64_t> barrier_generation;  ///< highest generation entered, by barrier
    Duration ping_interval = kShortestHeartbeat;         ///< interval to its next ping
  };
  const std::set<WorkerIndex>& in(Phase phase) const { return by_phase_[static_cast<size_t>(phase)]; }
  /// Adds the worker, or replaces its former incarnation.
  void put(WorkerIndex index, Worker worker);
  void set_phase(WorkerIndex index, Worker& worker, Phase phase);
  void abort_if_too_few();
  void record_loss(WorkerIndex index, Worker& worker, const std::string& cause, TimePoint now);
  Worker* find_live(WorkerIndex worker, uint64_t incarnation);

  Options options_;
  std::map<WorkerIndex, Worker> workers_;  ///< workers that have joined, or were expired without having joined
  // Each ping needs these sets; a search of all workers for each ping would be quadratic.
  std::array<std::set<WorkerIndex>, 4> by_phase_;  ///< the keys of workers_
  WorkerIndex first_absent_ = 0;                   ///< the lowest index that workers_ does not have
  std::set<uint64_t> incarnations_;                ///< incarnations that have ever joined
  uint64_t epoch_ = 0;
  std::string last_loss_;      ///< cause of the last departure; "" if that worker has finished
  TimePoint return_deadline_;  ///< end of the time without any member, after which the run is aborted
  TimePoint missing_until_ = TimePoint::max();
  TimePoint chief_until_ = TimePoint::max();
  bool chief_expected_ = true;
  std::string aborted_;
};

}  // namespace gradrail::ps
