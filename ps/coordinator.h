#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "ps/protocol.h"

namespace gradrail::ps {

/// Who is here, who is missing and whether the run goes on: the decisions of the control plane of one ps task.
/// Pure: time comes in as an argument.
///
/// Invariants
///   1. At most one incarnation of a worker is live.
///   2. A run that was aborted stays aborted.
///   3. A barrier of one generation completes once; who left or was lost is not waited for.
///   4. The epoch counts changes of the membership: whoever joins, leaves or is lost begins another one.
/// Threads   The caller's lock.
class Coordinator {
 private:
  enum class Phase : uint8_t { live, left, lost, away };

 public:
  struct Options {
    std::vector<std::string> worker_names;  ///< of the cluster specification, in task order
    Duration silence_limit = std::chrono::seconds(4);
    uint32_t min_workers = 1;  ///< the run is given up when a loss leaves fewer, those counted who may come
    /// How long a run waits for somebody to come back when the last worker was lost …
    Duration return_limit = std::chrono::seconds(30);
    /// … or has gone to look for a ps that was lost.
    Duration away_limit = std::chrono::seconds(90);
  };
  explicit Coordinator(Options options) : options_(std::move(options)) {}

  /// Errors  ABORTED: the run is over. ALREADY_EXISTS: a live incarnation was heard of recently (the same task index
  ///         twice, or a restart faster than its predecessor's end was noticed: try again).
  absl::Status join(WorkerIndex worker, uint64_t incarnation, const std::string& name, TimePoint now);

  /// Any sign of life. NOT_FOUND: not a live member (was declared lost, has left, or another incarnation took over).
  /// UNAVAILABLE: it was sent away to come back, or has never been here: it knows a ps that has died.
  absl::Status heard(WorkerIndex worker, uint64_t incarnation, TimePoint now);

  void leave(WorkerIndex worker, uint64_t incarnation);
  /// False when it was not a live member.
  bool lost(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now);

  /// The worker joins again when a ps that it has lost is back. False when it was not a live member.
  bool away(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now);

  /// Those who are away know where to come back to: they have the return limit for it.
  void servers_are_back(TimePoint now);
  /// This process did not run for a while, and could hear nobody.
  void stood_still(Duration gap);
  /// Somebody who fell silent may be cut off, and goes on trying for as long as whoever is away.
  void wait_for_the_silent(TimePoint now) { deserted_at_ = std::max(deserted_at_, now + options_.away_limit); }

  /// Aborts the run, in any mode, unless that has happened before. False then.
  bool give_up(const std::string& cause);

  struct Member {
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
  };
  std::vector<Member> live() const;
  /// In peace.
  bool has_left(WorkerIndex worker, uint64_t incarnation) const;

  /// Everybody who has ever been here, for a standby; it brings them back by restore().
  struct Known {
    WorkerIndex worker = 0;
    uint64_t incarnation = 0;
    std::string name;
    std::string gone;  ///< "": live; kLeft; else why it was lost
  };
  static constexpr const char* kLeft = "left";
  std::vector<Known> everybody() const;
  /// Whoever was live is given the return limit to come here.
  void restore(const std::vector<Known>& everybody, TimePoint now);

  /// Live members unheard of for longer than the limit; the caller declares them lost.
  std::vector<Member> silent(TimePoint now) const;

  /// Enters a barrier (again is harmless). True when it is complete for this generation.
  bool enter_barrier(const std::string& name, uint64_t generation, bool live_only, WorkerIndex worker,
                     uint64_t incarnation);
  /// Whom that barrier waits for, for people.
  std::vector<std::string> barrier_missing(const std::string& name, uint64_t generation, bool live_only) const;

  std::vector<std::string> live_names() const;
  std::string name_of(WorkerIndex worker) const;
  /// Why the run is over; "" while it goes on.
  const std::string& aborted() const { return aborted_; }
  /// The lowest worker that is live or still to come: it initialises, saves, and has the last word.
  WorkerIndex chief() const;
  uint64_t epoch() const { return epoch_; }
  size_t live_count() const { return count(Phase::live); }
  /// Of those who have been here.
  bool expects_anybody() const { return count(Phase::live) + count(Phase::away) > 0; }
  /// This run began before this process did: whoever is missing may have left by then.
  void goes_on(TimePoint now) { missing_until_ = std::min(missing_until_, now + options_.return_limit); }
  /// There are parameters to save: from the return limit on an absent worker is not the chief.
  void has_parameters(TimePoint now) { chief_until_ = std::min(chief_until_, now + options_.return_limit); }
  /// Those who are not waited for: they have left, or were lost.
  std::vector<WorkerIndex> gone() const;
  /// Takes those to have gone who have not come back within the away limit, and in a run that goes on those who have
  /// not come within the return limit. True when there were any.
  bool give_up_missing(TimePoint now);
  /// Aborts a run whose last worker was lost and to which nobody has come back in time.
  void give_up_deserted(TimePoint now);
  /// Everybody of the cluster specification has been here, and the last of them has said goodbye; or nobody is left of
  /// an aborted run.
  bool finished() const;
  /// Workers of the specification that have never joined.
  std::vector<std::string> never_joined() const;

 private:
  struct Worker {
    uint64_t incarnation = 0;
    std::string name;
    Phase phase = Phase::live;
    TimePoint heard;
    bool is_expected = false;  ///< was live at the ps task that this one took over from, and has not come yet
    std::string cause;         ///< lost: why
    std::map<std::string, uint64_t> barrier_generation;  ///< highest entered
  };
  size_t count(Phase phase) const;
  void give_up_too_few();
  void mark_lost(WorkerIndex index, Worker& worker, const std::string& cause, TimePoint now);
  Worker* find_live(WorkerIndex worker, uint64_t incarnation);
  std::vector<WorkerIndex> missing_at(const std::string& name, uint64_t generation, bool live_only) const;

  Options options_;
  std::map<WorkerIndex, Worker> workers_;
  std::set<uint64_t> incarnations_;  ///< that have joined
  uint64_t epoch_ = 0;
  std::string last_loss_;  ///< of the last worker that went; "" when it said goodbye
  TimePoint deserted_at_;  ///< when nobody has come back by then
  TimePoint missing_until_ = TimePoint::max();
  TimePoint chief_until_ = TimePoint::max();
  bool chief_may_come_ = true;
  std::string aborted_;
};

}  // namespace gradrail::ps
