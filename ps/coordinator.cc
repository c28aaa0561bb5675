#include "ps/coordinator.h"

#include <algorithm>

#include "fmt/format.h"

namespace gradrail::ps {

Coordinator::Worker* Coordinator::find_live(WorkerIndex worker, uint64_t incarnation) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.phase != Phase::live || found->second.incarnation != incarnation) {
    return nullptr;
  }
  return &found->second;
}

absl::Status Coordinator::join(WorkerIndex worker, uint64_t incarnation, const std::string& name, TimePoint now) {
  if (!aborted_.empty()) return absl::AbortedError(aborted_);
  const auto found = workers_.find(worker);
  if (found != workers_.end() && found->second.phase == Phase::live && found->second.incarnation != incarnation &&
      !found->second.is_expected) {
    return absl::AlreadyExistsError(fmt::format(
        "worker {} is already running (from {}): was the same task_index given twice?", worker, found->second.name));
  }
  // The same incarnation again is one that was not sure to have been heard.
  if (find_live(worker, incarnation) == nullptr) ++epoch_;
  incarnations_.insert(incarnation);
  workers_[worker] = {.incarnation = incarnation,
                      .name = name,
                      .phase = Phase::live,
                      .heard = now,
                      .is_expected = false,
                      .cause = "",
                      .barrier_generation = {}};
  return absl::OkStatus();
}

absl::Status Coordinator::heard(WorkerIndex worker, uint64_t incarnation, TimePoint now) {
  Worker* member = find_live(worker, incarnation);
  if (!incarnations_.contains(incarnation))
    return absl::UnavailableError(fmt::format("it was started again, and has not heard of worker {} yet", worker));
  if (member == nullptr) {
    const auto found = workers_.find(worker);
    if (found != workers_.end() && found->second.incarnation == incarnation && found->second.phase == Phase::away)
      return absl::UnavailableError(found->second.cause);
    const bool was_lost =
        found != workers_.end() && found->second.incarnation == incarnation && found->second.phase == Phase::lost;
    return absl::NotFoundError(fmt::format("worker {} is not a member any more ({})", worker,
                                           was_lost ? "declared lost: " + found->second.cause : "left, or replaced"));
  }
  member->heard = now;
  member->is_expected = false;
  return absl::OkStatus();
}

void Coordinator::leave(WorkerIndex worker, uint64_t incarnation) {
  Worker* member = find_live(worker, incarnation);
  if (member == nullptr) return;
  member->phase = Phase::left;
  last_loss_.clear();
  ++epoch_;
}

bool Coordinator::lost(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now) {
  Worker* member = find_live(worker, incarnation);
  if (member == nullptr) return false;
  mark_lost(worker, *member, cause, now);
  give_up_too_few();
  return true;
}

void Coordinator::give_up_too_few() {
  const size_t left = count(Phase::live) + count(Phase::away) + never_joined().size();
  if (left < options_.min_workers && options_.min_workers > 1)
    give_up(fmt::format("{}; {} of the {} workers that --min_workers asks for are left", last_loss_, left,
                        options_.min_workers));
}

void Coordinator::mark_lost(WorkerIndex index, Worker& worker, const std::string& cause, TimePoint now) {
  worker.phase = Phase::lost;
  worker.cause = cause;
  last_loss_ = fmt::format("worker {} ({}) was lost: {}", index, worker.name, cause);
  const TimePoint deserted_at = now + options_.return_limit;
  deserted_at_ = count(Phase::away) > 0 ? std::max(deserted_at_, deserted_at) : deserted_at;
  ++epoch_;
}

bool Coordinator::away(WorkerIndex worker, uint64_t incarnation, const std::string& cause, TimePoint now) {
  Worker* member = find_live(worker, incarnation);
  if (member == nullptr) return false;
  member->phase = Phase::away;
  member->heard = now;
  member->cause = cause;
  for (auto& [other, each] : workers_) {
    if (each.phase == Phase::away) each.heard = now;  // another ps may be lost now: all have time again
  }
  last_loss_ = fmt::format("worker {} ({}) did not come back: {}", worker, member->name, cause);
  deserted_at_ = now + options_.away_limit;
  ++epoch_;
  return true;
}

bool Coordinator::give_up(const std::string& cause) {
  if (!aborted_.empty()) return false;
  aborted_ = cause;
  return true;
}

void Coordinator::servers_are_back(TimePoint now) {
  for (auto& [index, worker] : workers_) {
    if (worker.phase == Phase::away)
      worker.heard = std::min(worker.heard, now + options_.return_limit - options_.away_limit);
  }
}

void Coordinator::stood_still(Duration gap) {
  for (auto& [index, worker] : workers_) worker.heard += gap;
}

bool Coordinator::has_left(WorkerIndex worker, uint64_t incarnation) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.incarnation == incarnation && found->second.phase == Phase::left;
}

std::vector<Coordinator::Member> Coordinator::silent(TimePoint now) const {
  std::vector<Member> found;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::live && now - worker.heard > options_.silence_limit) {
      found.push_back({index, worker.incarnation});
    }
  }
  return found;
}

std::vector<Coordinator::Member> Coordinator::live() const {
  std::vector<Member> members;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::live) members.push_back({index, worker.incarnation});
  }
  return members;
}

std::vector<Coordinator::Known> Coordinator::everybody() const {
  std::vector<Known> all;
  for (const auto& [index, worker] : workers_) {
    const bool gone = worker.phase != Phase::live;
    all.push_back({.worker = index,
                   .incarnation = worker.incarnation,
                   .name = worker.name,
                   .gone = !gone                                                 ? ""
                           : worker.phase == Phase::left || worker.cause.empty() ? kLeft
                                                                                 : worker.cause});
  }
  return all;
}

void Coordinator::restore(const std::vector<Known>& everybody, TimePoint now) {
  if (!aborted_.empty()) return;
  for (const Known& known : everybody) {
    join(known.worker, known.incarnation, known.name, now).IgnoreError();
    Worker& worker = workers_[known.worker];
    if (known.gone.empty()) {
      worker.heard = now + options_.return_limit;  // it comes when its step is done, which may take a while
      worker.is_expected = true;
    } else if (known.gone == kLeft) {
      leave(known.worker, known.incarnation);
    } else {
      mark_lost(known.worker, worker, known.gone, now);  // of whom enough were left: the run has gone on
    }
  }
}

std::vector<WorkerIndex> Coordinator::missing_at(const std::string& name, uint64_t generation, bool live_only) const {
  std::vector<WorkerIndex> missing;
  for (const auto& [index, worker] : workers_) {
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

bool Coordinator::enter_barrier(const std::string& name, uint64_t generation, bool live_only, WorkerIndex worker,
                                uint64_t incarnation) {
  if (Worker* member = find_live(worker, incarnation); member != nullptr) {
    uint64_t& highest = member->barrier_generation[name];
    highest = std::max(highest, generation);
  }
  return missing_at(name, generation, live_only).empty();
}

std::vector<std::string> Coordinator::barrier_missing(const std::string& name, uint64_t generation,
                                                      bool live_only) const {
  std::vector<std::string> names;
  for (const WorkerIndex index : missing_at(name, generation, live_only)) names.push_back(name_of(index));
  return names;
}

std::vector<std::string> Coordinator::live_names() const {
  std::vector<std::string> names;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::live) names.push_back(name_of(index));
  }
  return names;
}

std::string Coordinator::name_of(WorkerIndex worker) const {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) return fmt::format("worker {} ({})", worker, found->second.name);
  if (worker < options_.worker_names.size())
    return fmt::format("worker {} ({})", worker, options_.worker_names[worker]);
  return fmt::format("worker {}", worker);
}

WorkerIndex Coordinator::chief() const {
  WorkerIndex first_absent = 0;  // of the specification
  while (first_absent < options_.worker_names.size() && (workers_.contains(first_absent) || !chief_may_come_))
    ++first_absent;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase != Phase::live) continue;
    return first_absent < options_.worker_names.size() ? std::min(index, first_absent) : index;
  }
  return first_absent < options_.worker_names.size() ? first_absent : 0;
}

size_t Coordinator::count(Phase phase) const {
  return static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(),
                                           [phase](const auto& entry) { return entry.second.phase == phase; }));
}

std::vector<WorkerIndex> Coordinator::gone() const {
  std::vector<WorkerIndex> found;
  for (const auto& [index, worker] : workers_) {
    if (worker.phase == Phase::left || worker.phase == Phase::lost) found.push_back(index);
  }
  return found;
}

bool Coordinator::give_up_missing(TimePoint now) {
  if (now > chief_until_) chief_may_come_ = false;
  bool changed = false;
  for (auto& [index, worker] : workers_) {
    if (worker.phase != Phase::away || now - worker.heard <= options_.away_limit) continue;
    mark_lost(index, worker, "it did not come back from looking for a parameter server", now);
    give_up_too_few();
    changed = true;
  }
  if (now <= missing_until_) return changed;
  for (WorkerIndex index = 0; index < options_.worker_names.size(); ++index) {
    const Worker left{.name = options_.worker_names[index], .phase = Phase::left};
    if (!workers_.try_emplace(index, left).second) continue;
    ++epoch_;
    changed = true;
  }
  return changed;
}

void Coordinator::give_up_deserted(TimePoint now) {
  const bool goes_on = missing_until_ != TimePoint::max();
  if (live_count() > 0 || (!goes_on && !never_joined().empty())) return;
  if (!last_loss_.empty() && now > deserted_at_) give_up(fmt::format("{}, and nobody is left", last_loss_));
}

bool Coordinator::finished() const {
  if (live_count() > 0) return false;
  return !aborted_.empty() || (!workers_.empty() && never_joined().empty() && last_loss_.empty());
}

std::vector<std::string> Coordinator::never_joined() const {
  std::vector<std::string> names;
  for (WorkerIndex index = 0; index < options_.worker_names.size(); ++index) {
    if (!workers_.contains(index)) names.push_back(name_of(index));
  }
  return names;
}

}  // namespace gradrail::ps
