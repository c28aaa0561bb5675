#include "ps/control/membership.h"

#include <algorithm>

#include "base/check.h"
#include "fmt/format.h"
#include "ps/protocol/altered_data.h"

namespace gradrail::ps {
namespace {

/// Time that groups pings. The pings of this time arrive together in a large run: a server wakes once for a group of
/// about 16.
constexpr Duration kGroupTime = std::chrono::milliseconds(96);

Duration time_to_ping(size_t members, TimePoint now) {
  const Duration interval = heartbeat_interval(members);
  if (interval == kShortestHeartbeat) return interval;
  const Duration due = now.time_since_epoch() + interval + kGroupTime / 2;
  return due - due % kGroupTime - now.time_since_epoch();
}

}  // namespace

Membership::Worker* Membership::find_live(WorkerIndex worker, uint64_t incarnation) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.phase != Phase::live || found->second.incarnation != incarnation) {
    return nullptr;
  }
  return &found->second;
}

void Membership::put(WorkerIndex index, Worker worker) {
  const auto [place, is_new] = workers_.try_emplace(index);
  if (!is_new) by_phase_[static_cast<size_t>(place->second.phase)].erase(index);
  by_phase_[static_cast<size_t>(worker.phase)].insert(index);
  place->second = std::move(worker);
  while (workers_.contains(first_absent_)) ++first_absent_;
}

void Membership::set_phase(WorkerIndex index, Worker& worker, Phase phase) {
  by_phase_[static_cast<size_t>(worker.phase)].erase(index);
  by_phase_[static_cast<size_t>(phase)].insert(index);
  worker.phase = phase;
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
  put(worker, {.incarnation = incarnation, .name = name, .phase = Phase::live, .heard = now});
  GRADRAIL_CHECK(find_live(worker, incarnation) != nullptr);
  return absl::OkStatus();
}

absl::Status Membership::heard(WorkerIndex worker, uint64_t incarnation, TimePoint now) {
  Worker* member = find_live(worker, incarnation);
  // A restarted ps has lost its members: UNAVAILABLE makes the worker search for it and join again.
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
  // The member has contacted this task after the takeover: a second incarnation is now an error.
  member->is_expected = false;
  return absl::OkStatus();
}

Duration Membership::plan_ping(WorkerIndex worker, uint64_t incarnation, TimePoint now) {
  const Duration interval = time_to_ping(live_count(), now);
  if (Worker* member = find_live(worker, incarnation); member != nullptr) member->ping_interval = interval;
  return interval;
}

bool Membership::is_last(WorkerIndex worker, uint64_t incarnation) const {
  const std::set<WorkerIndex>& live = in(Phase::live);
  return live.size() == 1 && *live.begin() == worker && workers_.at(worker).incarnation == incarnation &&
         in(Phase::away).empty() && aborted_.empty();
}

void Membership::leave(WorkerIndex worker, uint64_t incarnation) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.incarnation != incarnation) return;
  Worker& member = found->second;
  const bool may_return = member.phase == Phase::lost && member.is_silent;
  if (member.phase != Phase::live && !may_return) return;
  set_phase(worker, member, Phase::left);
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
  const size_t left = live_count() + in(Phase::away).size() + never_joined().size();
  // A limit of 1 is the task of abort_if_deserted(), which gives the last worker time to return.
  if (left < options_.min_workers && options_.min_workers > 1)
    abort_run(fmt::format("{}; {} of the {} workers that --min_workers requires remain", last_loss_, left,
                          options_.min_workers));
}

void Membership::record_loss(WorkerIndex index, Worker& worker, const std::string& cause, TimePoint now) {
  GRADRAIL_CHECK(worker.phase == Phase::live || worker.phase == Phase::away);
  GRADRAIL_CHECK(!cause.empty());  // known_members(): "" means live
  set_phase(index, worker, Phase::lost);
  worker.cause = cause;
  last_loss_ = fmt::format("worker {} ({}) was lost: {}", index, worker.name, cause);
  // A member that is away was promised the away limit: a loss beside it must not shorten that.
  const TimePoint deserted_at = now + options_.return_limit;
  return_deadline_ = !in(Phase::away).empty() ? std::max(return_deadline_, deserted_at) : deserted_at;
  ++epoch_;
}

bool Membership::mark_away(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now) {
  Worker* member = find_live(worker, incarnation);
  if (member == nullptr) return false;
  GRADRAIL_CHECK(!cause.empty());  // known_members(): "" means live
  set_phase(worker, *member, Phase::away);
  member->heard = now;
  member->cause = cause;
  // Another ps may be lost: every search begins again.
  for (const WorkerIndex other : in(Phase::away)) workers_[other].heard = now;
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
  for (const WorkerIndex index : in(Phase::away)) {
    Worker& worker = workers_[index];
    // expire_absent() adds away_limit to `heard`: the absence then ends return_limit from now.
    worker.heard = std::min(worker.heard, now + options_.return_limit - options_.away_limit);
  }
}

void Membership::add_pause(Duration gap) {
  for (auto& [index, worker] : workers_) worker.heard += gap;
}

std::vector<Membership::Known> Membership::lost_members() const {
  std::vector<Known> lost;
  for (const WorkerIndex index : in(Phase::lost)) {
    const Worker& worker = workers_.at(index);
    lost.push_back({index, worker.incarnation, worker.name, worker.cause});
  }
  return lost;
}

bool Membership::has_left(WorkerIndex worker, uint64_t incarnation) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.incarnation == incarnation && found->second.phase == Phase::left;
}

std::vector<Membership::Silent> Membership::silent_members(TimePoint now) const {
  std::vector<Silent> found;
  for (const auto& [index, worker] : workers_) {
    const Duration limit = options_.heartbeat_timeout + (worker.ping_interval - kShortestHeartbeat);
    // `heard` may be in the future, during a join or after a takeover: the difference is then negative.
    if (worker.phase == Phase::live && now - worker.heard > limit) {
      found.push_back({.member = {index, worker.incarnation}, .limit = limit});
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
    // The call of join() records the epoch and the incarnations as at the primary.
    // Refused: another incarnation is live here. It is newer than the report of the primary, and stays.
    if (!join(known.worker, known.incarnation, known.name, now).ok()) continue;
    Worker& worker = workers_[known.worker];
    if (known.departed.empty()) {
      worker.heard = now + options_.return_limit;  // it contacts this task after its current step
      worker.is_expected = true;
    } else if (known.departed == kLeft) {
      leave(known.worker, known.incarnation);
    } else {
      record_loss(known.worker, worker, known.departed, now);  // not counted: the primary continued with enough workers
    }
  }
}

std::vector<WorkerIndex> Membership::missing_at(const std::string& name, uint64_t generation, bool live_only,
                                                size_t most) const {
  std::vector<WorkerIndex> missing;
  for (const auto& [index, worker] : workers_) {
    if (missing.size() >= most) return missing;
    // Members that left, are lost or away are not awaited (invariant 3).
    if (worker.phase != Phase::live) continue;
    const auto entered = worker.barrier_generation.find(name);
    if (entered == worker.barrier_generation.end() || entered->second < generation) missing.push_back(index);
  }
  if (live_only) return missing;
  for (WorkerIndex index = first_absent_; index < options_.worker_names.size() && missing.size() < most; ++index) {
    if (!workers_.contains(index)) missing.push_back(index);
  }
  return missing;
}

void Membership::enter_barrier(const std::string& name, uint64_t generation, WorkerIndex worker, uint64_t incarnation) {
  Worker* member = find_live(worker, incarnation);
  if (member == nullptr) return;
  uint64_t& highest = member->barrier_generation[name];
  // A late repetition of an older call must not open a barrier again that is complete (invariant 3).
  highest = std::max(highest, generation);
}

std::vector<std::string> Membership::barrier_missing(const std::string& name, uint64_t generation, bool live_only,
                                                     size_t most) const {
  const std::vector<WorkerIndex> missing = missing_at(name, generation, live_only, SIZE_MAX);
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(missing.size(), most); ++i) names.push_back(name_of(missing[i]));
  if (missing.size() > most) names.push_back(fmt::format("{} others", missing.size() - most));
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
  // An absent worker of the specification may join at any moment, and is the chief then.
  const bool is_absent_expected = chief_expected_ && first_absent_ < options_.worker_names.size();
  const std::set<WorkerIndex>& live = in(Phase::live);
  // The number has no meaning without a candidate; no worker compares itself with it.
  if (live.empty()) return is_absent_expected ? first_absent_ : 0;
  return is_absent_expected ? std::min(*live.begin(), first_absent_) : *live.begin();
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
    // The worker counts as one that has left before this process began, so that a late join is accepted.
    if (workers_.contains(index)) continue;
    put(index, {.name = options_.worker_names[index], .phase = Phase::left});
    ++epoch_;
    changed = true;
  }
  return changed;
}

void Membership::abort_if_deserted(TimePoint now) {
  // A new run waits for all its workers without a limit, because people start them manually.
  if (!deserted() || (!is_continued() && !never_joined().empty())) return;
  if (now > return_deadline_) abort_run(fmt::format("{}, and no worker remains", last_loss_));
}

bool Membership::finished() const {
  if (live_count() > 0) return false;
  if (!aborted_.empty()) return true;
  // expire_absent() ends the wait for members that do not return.
  if (workers_.empty() || !may_return().empty() || !never_joined().empty()) return false;
  // The worker may return after a loss. abort_if_deserted() ends the run if it does not.
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
