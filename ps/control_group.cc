// Which ps processes make the run, and where in it they begin (DESIGN.md, "A ps that is started again").
#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "ps/control_service.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {

absl::Status ControlService::check_group(const proto::JoinRequest& request) {
  if (request.group() == agreed_->group) {
    const bool comes_back = request.has_left_group() && request.left_group() != request.group();
    if (comes_back && agreed_->newcomer.has_value()) correct_base(request);
    return absl::OkStatus();
  }
  const bool comes_from_here = request.has_left_group() &&
                               (request.left_group() == agreed_->group || past_groups_.contains(request.left_group()));
  bool nobody_is_here = false;
  {
    std::lock_guard lock(mutex_);
    nobody_is_here = !coordinator_.expects_anybody();
  }
  if (nobody_is_here || (comes_from_here && !past_groups_.contains(request.group()))) {
    regroup();
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(
      "this ps task runs together with other parameter servers than this worker has found: either the lists of servers "
      "differ, or one of them has just been started again");
}

bool ControlService::has_values() const {
  return std::all_of(shards_.begin(), shards_.end(), [](const auto& shard) {
    const absl::StatusOr<Shard::Stats> stats = shard->stats();
    return stats.ok() && stats->initialised;
  });
}

/// Somebody new was here before those who know how far the run is. Who is told of another base by a Notice takes it.
void ControlService::correct_base(const proto::JoinRequest& request) {
  // Where nothing was saved the chief's values are taken. If that is the newcomer, the run is at its beginning indeed.
  if (!began_from_.has_global_step() && (*agreed_->newcomer < request.member().task_index() || has_values())) return;
  agreed_->newcomer.reset();
  agreed_->run_base = base_of(request, agreed_->training.mode);
  std::lock_guard lock(mutex_);
  set_up_by_.set_run_base(agreed_->run_base);
}

/// A ps of this run was lost and is back without what it had: all tasks go back to one checkpoint, or to nothing.
void ControlService::regroup() {
  constexpr const char* kCause = "a parameter server was lost, and all begin again from one checkpoint";
  std::vector<Coordinator::Member> members;
  {
    std::lock_guard lock(mutex_);
    members = coordinator_.live();
    for (const Coordinator::Member& member : members)
      coordinator_.away(member.worker, member.incarnation, kCause, Clock::now());
    coordinator_.servers_are_back(Clock::now());
  }
  changed_.notify_all();
  spdlog::warn("{}", kCause);
  for (const auto& shard : shards_) {
    for (const Coordinator::Member& member : members) shard->cut_off(member.worker, member.incarnation);
  }
  past_groups_.insert(agreed_->group);
  agreed_.reset();
  began_from_.Clear();
}

/// Of what was restored, by a worker that has just begun or that comes back from a ps that was lost.
int64_t ControlService::base_of(const proto::JoinRequest& request, Mode mode) const {
  if (!mode.sums()) return 0;
  if (!request.has_left_group()) return static_cast<int64_t>(began_from_.global_step());
  // Where nothing was saved versions begin anew, and the run goes on where the first to come was.
  return began_from_.has_global_step() ? request.run_base() : -static_cast<int64_t>(request.position());
}

}  // namespace gradrail::ps
