#include "ps/control/membership.h"

#include <algorithm>

#include "base/check.h"
#include "fmt/format.h"
#include "ps/protocol/altered_data.h"

namespace gradrail::ps {

Membership::Worker* Membership::find_live(WorkerIndex worker, uint64_t incarnation) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.phase != Phase::live || found->second.incarnation != incarnation) {
    return nullptr;
  }
  return &found->second;
}

absl::Status Membership::join(WorkerIndex worker, uint64_t incarnation, const std::string& name, TimePoint now) {
  if (!aborted_.empty()) return aborted_run(aborted_);
  const auto found = workers_.find(worker);
  if (found != workers_.end() && found->second.phase == Phase::live && found->second.incarnation != incarnation &&
      !found->second.is_expected) {
    return absl::AlreadyExistsError(
        fmt::format("worker {} is already running (from {}): do two processes have the same task_index?", worker,
                    found->second.name));
  }
  // A worker repeats its join when the answer was lost: that changes nothing.
  if (find_live(worker, incarnation) == nullptr) ++epoch_;
  incarnations_.insert(incarnation);
  // A new entry, not an update: barriers of the former incarnation must not count.
  workers_[worker] = {.incarnation = incarnation,
                      .name = name,
                      .phase = Phase::live,
                      .heard = now,
                      .is_expected = false,
                      .is_silent = false,
                      .cause = "",
                      .barrier_generation = {}};
  GRADRAIL_CHECK(find_live(worker, incarnation) != nullptr);
  return absl::OkStatus();
}

absl::Status Membership::heard(WorkerIndex worker, uint64_t incarnation, TimePoint now) {
  Worker* member = find_live(worker, incarnation);
  // A restarted ps has forgotten its members: UNAVAILABLE makes the worker search for it and join again.
  if (!incarnations_.contains(incarnation))
    return absl::UnavailableError(
        fmt::format("the ps task has restarted, and worker {} has not joined it again yet", worker));
  if (member == nullptr) {
    const auto found = workers_.find(worker);
    if (found != workers_.end() && found->second.incarnation == incarnation && found->second.phase == Phase::away)
      return absl::UnavailableError(found->second.cause);
    const bool was_lost =
        found != workers_.end() && found->second.incarnation == incarnation && found->second.phase == Phase::lost;
    const std::string why = fmt::format("worker {} is not a member any more ({})", worker,
                                        was_lost ? "declared lost: " + found->second.cause : "left, or replaced");
    return was_lost && found->second.is_silent ? absl::OutOfRangeError(why) : absl::NotFoundError(why);
  }
  member->heard = now;
  // It has come to this task after the takeover: a second incarnation is now an error.
  member->is_expected = false;
  return absl::OkStatus();
}

bool Membership::is_last(WorkerIndex worker, uint64_t incarnation) const {
  const std::vector<Member> members = live();
  return members.size() == 1 && members[0].worker == worker && members[0].incarnation == incarnation &&
         count(Phase::away) == 0 && aborted_.empty();
}

void Membership::leave(WorkerIndex worker, uint64_t incarnation) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.incarnation != incarnation) return;
  Worker& member = found->second;
  const bool may_return = member.phase == Phase::lost && member.is_silent;
  if (member.phase != Phase::live && !may_return) return;
  member.phase = Phase::left;
  member.is_silent = false;
  // finished() requires that the last departure was not a loss.
  last_loss_.clear();
  ++epoch_;
}

bool Membership::mark_lost(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now) {
  Worker* member = find_live(worker, incarnation);
  if (member == nullptr) return false;
  record_loss(worker, *member, cause, now);
  abort_if_too_few();
  return true;
}

void Membership::abort_if_too_few() {
  const size_t left = count(Phase::live) + count(Phase::away) + never_joined().size();
  // A limit of 1 is the task of abort_if_deserted(), which gives the last worker time to return.
  if (left < options_.min_workers && options_.min_workers > 1)
    abort_run(fmt::format("{}; {} of the {} workers that --min_workers requires remain", last_loss_, left,
                          options_.min_workers));
}

void Membership::record_loss(WorkerIndex index, Worker& worker, const std::string& cause, TimePoint now) {
  GRADRAIL_CHECK(worker.phase == Phase::live || worker.phase == Phase::away);
  GRADRAIL_CHECK(!cause.empty());  // known_members(): "" means live
  worker.phase = Phase::lost;
  worker.cause = cause;
  last_loss_ = fmt::format("worker {} ({}) was lost: {}", index, worker.name, cause);
  // A member that is away was promised the away limit: a loss beside it must not shorten that.
  const TimePoint deserted_at = now + options_.return_limit;
  return_deadline_ = count(Phase::away) > 0 ? std::max(return_deadline_, deserted_at) : deserted_at;
  ++epoch_;
}

bool Membership::mark_away(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now) {
  Worker* member = find_live(worker, incarnation);
  if (member == nullptr) return false;
  GRADRAIL_CHECK(!cause.empty());  // known_members(): "" means live
  member->phase = Phase::away;
  member->heard = now;
  member->cause = cause;
  for (auto& [other, each] : workers_) {
    if (each.phase == Phase::away) each.heard = now;  // another ps may be lost: every search begins again
  }
  // Used only if no member returns in time.
  last_loss_ = fmt::format("worker {} ({}) did not return: {}", worker, member->name, cause);
  return_deadline_ = now + options_.away_limit;
  ++epoch_;
  return true;
}

void Membership::mark_silent(WorkerIndex worker, uint64_t incarnation, TimePoint now) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  Worker& member = found->second;
  if (member.phase != Phase::lost || member.incarnation != incarnation) return;
  member.is_silent = true;
  member.heard = now;
  return_deadline_ = std::max(return_deadline_, now + options_.away_limit);
}

bool Membership::abort_run(const std::string& cause) {
  GRADRAIL_CHECK(!cause.empty());  // "" means that the run continues
  if (!aborted_.empty()) return false;
  aborted_ = cause;
  return true;
}

void Membership::on_servers_back(TimePoint now) {
  for (auto& [index, worker] : workers_) {
    if (worker.phase == Phase::away)
      // expire_absent() adds away_limit to `heard`: the absence then ends return_limit from now.
      worker.heard = std::min(worker.heard, now + options_.return_limit - options_.away_limit);
  }
}

void Membership::add_pause(Duration gap) {
  for (auto& [index, worker] : workers_) worker.heard += gap;
}

std::vector<Membership::Known> Membership::lost_members() const {
  std::vector<Known> lost;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::lost) lost.push_back({index, worker.incarnation, worker.name, worker.cause});
  }
  return lost;
}

bool Membership::has_left(WorkerIndex worker, uint64_t incarnation) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.incarnation == incarnation && found->second.phase == Phase::left;
}

std::vector<Membership::Member> Membership::silent_members(TimePoint now) const {
  std::vector<Member> found;
  for (const auto& [index, worker] : workers_) {
    // `heard` may be in the future, during a join or after a takeover: the difference is then negative.
    if (worker.phase == Phase::live && now - worker.heard > options_.heartbeat_timeout) {
      found.push_back({index, worker.incarnation});
    }
  }
  return found;
}

std::vector<Membership::Member> Membership::live() const {
  std::vector<Member> members;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::live) members.push_back({index, worker.incarnation});
  }
  return members;
}

std::vector<Membership::Known> Membership::known_members() const {
  std::vector<Known> all;
  for (const auto& [index, worker] : workers_) {
    std::string departed;
    if (worker.phase == Phase::left) departed = kLeft;
    if (worker.phase == Phase::lost) departed = worker.cause;
    all.push_back({index, worker.incarnation, worker.name, std::move(departed)});
  }
  return all;
}

void Membership::restore(const std::vector<Known>& members, TimePoint now) {
  if (!aborted_.empty()) return;
  for (const Known& known : members) {
    // Through join(), so that the epoch and the incarnations are recorded as at the primary.
    // Refused: another incarnation is live here. It is newer than the report of the primary, and stays.
    if (!join(known.worker, known.incarnation, known.name, now).ok()) continue;
    Worker& worker = workers_[known.worker];
    if (known.departed.empty()) {
      worker.heard = now + options_.return_limit;  // it contacts this task after its current step
      worker.is_expected = true;
    } else if (known.departed == kLeft) {
      leave(known.worker, known.incarnation);
    } else {
      record_loss(known.worker, worker, known.departed, now);  // not counted: the primary went on with enough workers
    }
  }
}

std::vector<WorkerIndex> Membership::missing_at(const std::string& name, uint64_t generation, bool live_only) const {
  std::vector<WorkerIndex> missing;
  for (const auto& [index, worker] : workers_) {
    // Members that left, are lost or away are not awaited (invariant 3).
    if (worker.phase != Phase::live) continue;
    const auto entered = worker.barrier_generation.find(name);
    if (entered == worker.barrier_generation.end() || entered->second < generation) missing.push_back(index);
  }
  if (!live_only) {
    for (WorkerIndex index = 0; index < options_.worker_names.size(); ++index) {
      if (!workers_.contains(index)) missing.push_back(index);
    }
  }
  return missing;
}

bool Membership::enter_barrier(const std::string& name, uint64_t generation, bool live_only, WorkerIndex worker,
                               uint64_t incarnation) {
  if (Worker* member = find_live(worker, incarnation); member != nullptr) {
    uint64_t& highest = member->barrier_generation[name];
    // A late repetition of an older call must not open a barrier again that is complete (invariant 3).
    highest = std::max(highest, generation);
  }
  return missing_at(name, generation, live_only).empty();
}

std::vector<std::string> Membership::barrier_missing(const std::string& name, uint64_t generation,
                                                     bool live_only) const {
  std::vector<std::string> names;
  for (const WorkerIndex index : missing_at(name, generation, live_only)) names.push_back(name_of(index));
  return names;
}

std::vector<std::string> Membership::live_names() const {
  std::vector<std::string> names;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::live) names.push_back(name_of(index));
  }
  return names;
}

std::string Membership::name_of(WorkerIndex worker) const {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) return fmt::format("worker {} ({})", worker, found->second.name);
  if (worker < options_.worker_names.size())
    return fmt::format("worker {} ({})", worker, options_.worker_names[worker]);
  return fmt::format("worker {}", worker);
}

WorkerIndex Membership::chief() const {
  WorkerIndex first_absent = 0;  // of the specification; it may join at any moment, and is the chief then.
  // Without chief_expected_ no absent worker is a candidate: the loop then runs to the end.
  while (first_absent < options_.worker_names.size() && (workers_.contains(first_absent) || !chief_expected_))
    ++first_absent;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase != Phase::live) continue;
    return first_absent < options_.worker_names.size() ? std::min(index, first_absent) : index;
  }
  // Without a candidate the number has no meaning; no worker compares itself with it.
  return first_absent < options_.worker_names.size() ? first_absent : 0;
}

size_t Membership::count(Phase phase) const {
  return static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(),
                                           [phase](const auto& entry) { return entry.second.phase == phase; }));
}

std::vector<WorkerIndex> Membership::departed() const {
  std::vector<WorkerIndex> found;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::left || worker.phase == Phase::lost) found.push_back(index);
  }
  return found;
}

bool Membership::expire_absent(TimePoint now) {
  if (now > chief_until_) chief_expected_ = false;
  bool changed = false;
  for (auto& [index, worker] : workers_) {
    if (now - worker.heard <= options_.away_limit) continue;
    worker.is_silent = false;
    if (worker.phase != Phase::away) continue;
    record_loss(index, worker, "it did not return from its search for a parameter server", now);
    abort_if_too_few();
    changed = true;
  }
  if (now <= missing_until_) return changed;
  for (WorkerIndex index = 0; index < options_.worker_names.size(); ++index) {
    // It counts as one that has left before this process began, so that a late join is accepted.
    const Worker left{.name = options_.worker_names[index], .phase = Phase::left};
    if (!workers_.try_emplace(index, left).second) continue;
    ++epoch_;
    changed = true;
  }
  return changed;
}

void Membership::abort_if_deserted(TimePoint now) {
  // A new run waits for all its workers without a limit, because people start them by hand.
  if (!deserted() || (!is_continued() && !never_joined().empty())) return;
  if (now > return_deadline_) abort_run(fmt::format("{}, and no worker remains", last_loss_));
}

bool Membership::finished() const {
  if (live_count() > 0) return false;
  if (!aborted_.empty()) return true;
  // expire_absent() ends the wait for members that do not return.
  if (workers_.empty() || !may_return().empty() || !never_joined().empty()) return false;
  // After a loss the worker may return. abort_if_deserted() ends the run if it does not.
  return last_loss_.empty();
}

std::vector<std::string> Membership::may_return() const {
  std::vector<std::string> names;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::away || worker.is_silent) names.push_back(name_of(index));
  }
  return names;
}

std::vector<std::string> Membership::never_joined() const {
  std::vector<std::string> names;
  for (WorkerIndex index = 0; index < options_.worker_names.size(); ++index) {
    if (!workers_.contains(index)) names.push_back(name_of(index));
  }
  return names;
}

}  // namespace gradrail::ps
