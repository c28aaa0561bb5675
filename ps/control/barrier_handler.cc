#include "ps/control/barrier_handler.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/status.h"
#include "ps/control/replication.h"
#include "ps/protocol/altered_data.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

/// A call occupies a thread of the server no longer than this.
constexpr uint32_t kLongestBarrierWaitMs = 10'000;
/// gRPC announces no cancellation, so it is polled.
constexpr auto kLookForCancellationEvery = std::chrono::milliseconds(500);

}  // namespace

absl::Status BarrierHandler::enter(const proto::BarrierRequest& request, const std::function<bool()>& is_cancelled,
                                   proto::BarrierReply& reply) {
  const Membership::Member member = to_member(request.member());
  const auto deadline = Clock::now() + std::chrono::milliseconds(std::min(request.timeout_ms(), kLongestBarrierWaitMs));
  ControlState& state = context_.state;
  MutexLock lock(state.mutex);
  // A worker in a barrier counts as heard by its call, too.
  GRADRAIL_RETURN_IF_ERROR(state.membership.heard(member.worker, member.incarnation, Clock::now()));
  bool others_know = false;
  while (true) {
    // Both may change during each wait.
    GRADRAIL_RETURN_IF_ERROR(replication_.check_serving());
    if (!state.membership.aborted().empty()) return aborted_run(state.membership.aborted());
    reply.set_complete(state.membership.enter_barrier(request.name(), request.generation(), request.live_only(),
                                                      member.worker, member.incarnation));
    // An incomplete barrier is not an error: the worker asks again and logs the missing ones.
    if (reply.complete() || Clock::now() >= deadline || is_cancelled()) break;
    // Others may wait for a smaller set of workers, which is complete with this one.
    if (!std::exchange(others_know, true)) state.changed.notify_all();
    state.changed.wait_until(lock, std::min(deadline, Clock::now() + kLookForCancellationEvery));
  }
  state.changed.notify_all();  // this entry may have completed the barrier
  for (std::string& name :
       state.membership.barrier_missing(request.name(), request.generation(), request.live_only())) {
    reply.add_missing(std::move(name));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::ps
