#include "ps/control/control_context.h"

#include <utility>

#include "base/check.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {

Membership::Member to_member(const proto::Member& message) { return {message.task_index(), message.incarnation()}; }

absl::Status ControlState::heard(const Membership::Member& member) {
  MutexLock lock(mutex);
  return membership.heard(member.worker, member.incarnation, Clock::now());
}

std::string ControlState::aborted() {
  MutexLock lock(mutex);
  return membership.aborted();
}

void LossQueue::report(Loss loss) {
  {
    MutexLock lock(mutex_);
    content_.losses.push_back(std::move(loss));
  }
  changed_.notify_all();  // no lock: the main thread can take it immediately
}

void LossQueue::report_failure(const std::string& cause) {
  {
    MutexLock lock(mutex_);
    // The first failure is the cause; others follow from it.
    if (content_.failure.empty()) content_.failure = cause;
  }
  changed_.notify_all();
}

void LossQueue::report_non_finite(const NonFinite& first) {
  MutexLock lock(mutex_);
  if (non_finite_shards_++ == 0) non_finite_ = first;  // no notice: the report can wait until the next look
}

void LossQueue::report_finite() {
  MutexLock lock(mutex_);
  GRADRAIL_CHECK(non_finite_shards_ > 0);
  --non_finite_shards_;
}

std::optional<NonFinite> LossQueue::take_non_finite() {
  MutexLock lock(mutex_);
  return std::exchange(non_finite_, std::nullopt);
}

void LossQueue::wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

LossQueue::Content LossQueue::wait(Duration timeout) {
  GRADRAIL_CHECK(timeout >= Duration::zero());
  MutexLock lock(mutex_);
  // A single wait without a loop: wake() may mean the end of the run, which the caller must check.
  if (content_.losses.empty() && content_.failure.empty() && !woken_) changed_.wait_until(lock, Clock::now() + timeout);
  woken_ = false;
  return std::exchange(content_, Content{});
}

ControlContext::ControlContext(ServerOptions server_options, std::string folder,
                               std::vector<std::unique_ptr<Shard>>& all_shards)
    : options(std::move(server_options)),
      checkpoint_folder(std::move(folder)),
      shards(all_shards),
      state({.worker_names = options.worker_names,
             .heartbeat_timeout = options.heartbeat_timeout,
             .min_workers = options.min_workers,
             .return_limit = options.return_limit,
             .away_limit = options.away_limit}) {}

}  // namespace gradrail::ps
