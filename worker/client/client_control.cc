// Calls to all ps tasks outside an exchange: barriers, checkpoints and the end of the membership. A call that fails
// because its ps was lost is repeated once a backup has taken over. A call that fails because this worker was lost by
// silence is repeated once it has joined again.
#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/control.pb.h"
#include "worker/client/client_impl.h"
#include "worker/client/session/stop.h"

namespace gradrail::worker {
namespace {

/// A call at a barrier returns after this time, so that this side can look for failures, signals and a stop. A call
/// costs the ps about 0.1 ms: those of thousands of workers take at most a tenth of a core.
uint32_t barrier_timeout_ms(size_t workers) { return std::max(1000u, static_cast<uint32_t>(workers)); }
constexpr auto kBarrierReportEvery = std::chrono::seconds(10);
/// The time that a call which begins a save beside steps may take.
constexpr auto kSaveBegins = std::chrono::seconds(30);
/// The time for the save of another worker, which a call that saves waits for.
constexpr auto kSaveEnds = std::chrono::minutes(10);
// ps tasks that are free write in vain at each attempt.
constexpr Duration kBetweenCalls = std::chrono::milliseconds(50);
constexpr Duration kLongestBetweenCalls = std::chrono::seconds(5);

}  // namespace

/// Whether a call to a ps can be repeated: a backup has taken over, or this worker was lost by silence and has joined
/// again.
bool ClientImpl::survives(const absl::Status& call) {
  if (!absl::IsOutOfRange(call) && !is_returnable(call)) return failover_.survives(call);
  // An error of a disk can have this code too: a call to a ps task decides.
  for (uint32_t i = 0; i < session_.joined_count(); ++i) {
    const absl::Status removed = session_.control(i).why_removed(identity_.member());
    if (!removed.ok()) failure_.fail(removed);
  }
  return failure_.failed() && remedy_outside_exchange().ok();
}

/// The recorded failure of the run explains the error of a call better.
absl::Status ClientImpl::of_this_worker(const absl::Status& call) const {
  return call.ok() || failure_.status().ok() ? call : failure_.status();
}

absl::Status ClientImpl::barrier(const std::string& name, TimePoint absent_until) {
  ps::proto::BarrierRequest request;
  request.set_name(name);
  request.set_timeout_ms(barrier_timeout_ms(options_.cluster.workers.size()));
  uint64_t generation = 0;
  TimePoint notice_at = Clock::now() + kBarrierReportEvery;
  while (true) {
    GRADRAIL_RETURN_IF_ERROR(remedy_outside_exchange());
    *request.mutable_member() = identity_.member();
    // The worker needs a number for its first barrier of this name, and after a rejoin to restarted servers.
    if (generation == 0 || !session_.barrier_generations().contains(name)) generation = session_.next_barrier(name);
    request.set_generation(generation);
    telemetry_.answer_dump();
    if (asked_to_stop(options_))
      return absl::CancelledError(fmt::format("stopped while waiting at barrier '{}'", name));
    // Later rounds no longer wait for workers that have not joined: they may never do.
    request.set_live_only(Clock::now() >= absent_until);
    const absl::StatusOr<ps::proto::BarrierReply> reply = session_.control(0).barrier(request);
    if (survives(reply.status())) continue;
    if (!reply.ok()) return of_this_worker(reply.status());
    if (reply->complete()) return absl::OkStatus();
    if (Clock::now() < notice_at) continue;
    notice_at += kBarrierReportEvery;
    options_.hooks.log(fmt::format("barrier '{}': waiting for {}", name, fmt::join(reply->missing(), ", ")));
  }
}

absl::Status ClientImpl::finish_steps() {
  GRADRAIL_RETURN_IF_ERROR(remedy_outside_exchange());
  GRADRAIL_RETURN_IF_ERROR(check_idle("finish_steps"));
  absl::Status sent = session_.finish_steps();
  while (survives(sent)) sent = session_.finish_steps();
  return of_this_worker(sent);
}

absl::Status ClientImpl::begin_checkpoint() {
  GRADRAIL_RETURN_IF_ERROR(remedy_outside_exchange());
  const absl::Status begun = session_.save().begin(identity_.member());
  if (!survives(begun)) return of_this_worker(begun);
  // The ps tasks that had begun the save still write it: they refuse the next one until then.
  return begin_checkpoint_when_free(session_.save().begin(identity_.member()), kSaveBegins);
}

absl::Status ClientImpl::begin_checkpoint_when_free(absl::Status begun, Duration limit) {
  const TimePoint deadline = Clock::now() + limit;
  Duration wait = kBetweenCalls;
  while (absl::IsAlreadyExists(begun) && Clock::now() < deadline) {
    std::this_thread::sleep_for(wait);
    wait = std::min(2 * wait, kLongestBetweenCalls);
    begun = session_.save().begin(identity_.member());
  }
  return begun;
}

absl::StatusOr<std::vector<std::string>> ClientImpl::save_checkpoint() {
  GRADRAIL_RETURN_IF_ERROR(begin_checkpoint_when_free(begin_checkpoint(), kSaveEnds));
  return finish_checkpoint();
}

absl::StatusOr<std::vector<std::string>> ClientImpl::finish_checkpoint() {
  absl::StatusOr<std::vector<std::string>> files = session_.save().finish();
  while (survives(files.status())) {  // the backup has the requested state or a later one
    GRADRAIL_RETURN_IF_ERROR(begin_checkpoint_when_free(begin_checkpoint(), kSaveBegins));
    files = session_.save().finish();
  }
  if (absl::IsOutOfRange(files.status())) return of_this_worker(files.status());
  return files;
}

absl::StatusOr<bool> ClientImpl::leave_unless_last() {
  if (left_ || session_.joined_count() == 0) return true;
  // The first task decides. The others receive the leave of a worker that has left the first one.
  absl::StatusOr<bool> left = session_.control(0).leave_unless_last(identity_.member());
  if (survives(left.status())) left = session_.control(0).leave_unless_last(identity_.member());
  if (left.ok() && !*left) return false;
  absl::Status ended = of_this_worker(left.status());
  ended.Update(leave_from(left.ok() ? 1 : 0, ""));
  GRADRAIL_RETURN_IF_ERROR(ended);
  return true;
}

absl::Status ClientImpl::leave_from(uint32_t first_task, const std::string& failed) {
  if (left_) return absl::OkStatus();
  left_ = true;
  telemetry_.publish(stats(), Clock::now());
  absl::Status first_error;
  // The heartbeats stop after Leave: without it, their end would mean that this worker is lost.
  for (uint32_t i = first_task; i < session_.joined_count(); ++i) {
    absl::Status sent = session_.control(i).leave(identity_.member(), failed);
    if (failed.empty() && failover_.survives(sent)) sent = session_.control(i).leave(identity_.member(), failed);
    first_error.Update(sent);
  }
  session_.stop_heartbeats();
  return first_error;
}

}  // namespace gradrail::worker
