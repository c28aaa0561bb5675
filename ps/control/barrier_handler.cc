#include "ps/control/barrier_handler.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/control/replication.h"
#include "ps/protocol/altered_data.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::ps {
namespace {

/// The worker then looks for failures, signals and a stop.
constexpr uint32_t kLongestBarrierWaitMs = 10'000;
/// A change of the role of this task is not announced, so it is polled.
constexpr auto kLookForRoleEvery = std::chrono::milliseconds(500);
/// Thousands of replies with thousands of names would take gigabytes.
constexpr size_t kMostNames = 20;

}  // namespace

absl::Status BarrierHandler::start() {
  GRADRAIL_ASSIGN_OR_RETURN(thread_, start_thread("of barriers", [this] { run(); }));
  return absl::OkStatus();
}

BarrierHandler::~BarrierHandler() {
  {
    const MutexLock lock(context_.state.mutex);
    GRADRAIL_CHECK(waits_.empty());
    is_ending_ = true;
  }
  context_.state.changed.notify_all();
  if (thread_.joinable()) thread_.join();
}

uint64_t BarrierHandler::enter(const proto::BarrierRequest& request, proto::BarrierReply& reply, Done done) {
  const Membership::Member member = to_member(request.member());
  const TimePoint now = Clock::now();
  uint64_t number = 0;
  {
    MutexLock lock(context_.state.mutex);
    Membership& membership = context_.state.membership;
    // The call of a worker in a barrier counts as a message of it.
    if (const absl::Status live = membership.heard(member.worker, member.incarnation, now); !live.ok()) {
      lock.unlock();
      done(live);
      return 0;
    }
    membership.enter_barrier(request.name(), request.generation(), member.worker, member.incarnation);
    number = next_number_++;
    waits_.push_back(
        {.number = number,
         .barrier = {.name = request.name(), .generation = request.generation(), .live_only = request.live_only()},
         .deadline = now + std::chrono::milliseconds(std::min(request.timeout_ms(), kLongestBarrierWaitMs)),
         .reply = &reply,
         .done = std::move(done),
         .status = absl::OkStatus()});
  }
  context_.state.changed.notify_all();  // this entry may have completed the barrier
  return number;
}

void BarrierHandler::cancel(uint64_t number) {
  Waits cancelled;
  {
    const MutexLock lock(context_.state.mutex);
    const auto place =
        std::find_if(waits_.begin(), waits_.end(), [&](const Wait& wait) { return wait.number == number; });
    if (place != waits_.end()) cancelled.splice(cancelled.end(), waits_, place);
  }
  for (const Wait& wait : cancelled) wait.done(absl::CancelledError("the caller has disconnected"));
}

/// Takes the waits that have ended, with their results.
BarrierHandler::Waits BarrierHandler::take_ended() {
  // All of them may change during each wait.
  absl::Status failed = replication_.check_serving();
  if (failed.ok() && !context_.state.membership.aborted().empty()) {
    failed = aborted_run(context_.state.membership.aborted());
  }
  const TimePoint now = Clock::now();
  std::map<Barrier, bool> is_complete;  // many wait at the same barrier
  Waits ended;
  for (auto next = waits_.begin(); next != waits_.end();) {
    const auto wait = next++;
    const Barrier& barrier = wait->barrier;
    const auto [known, is_new] = is_complete.try_emplace(barrier, false);
    if (is_new) {
      const auto missing = context_.state.membership.missing_at(barrier.name, barrier.generation, barrier.live_only, 1);
      known->second = missing.empty();
    }
    if (failed.ok() && !known->second && now < wait->deadline) continue;
    wait->status = failed;
    wait->reply->set_complete(known->second);
    // An incomplete barrier is not an error: the worker calls again and logs the missing ones.
    if (failed.ok() && !known->second) {
      for (std::string& name :
           context_.state.membership.barrier_missing(barrier.name, barrier.generation, barrier.live_only, kMostNames)) {
        wait->reply->add_missing(std::move(name));
      }
    }
    ended.splice(ended.end(), waits_, wait);
  }
  return ended;
}

void BarrierHandler::run() {
  pthread_setname_np(pthread_self(), "gradrail-wait");
  MutexLock lock(context_.state.mutex);
  while (!is_ending_) {
    // Replication has its link before the first call arrives. The loop does not query it without a call.
    if (waits_.empty()) {
      context_.state.changed.wait(lock);
      continue;
    }
    const Waits ended = take_ended();
    if (!ended.empty()) {
      lock.unlock();
      for (const Wait& wait : ended) wait.done(wait.status);
      lock.lock();
      continue;  // the state may have changed meanwhile
    }
    TimePoint next = Clock::now() + kLookForRoleEvery;
    for (const Wait& wait : waits_) next = std::min(next, wait.deadline);
    context_.state.changed.wait_until(lock, next);
  }
}

}  // namespace gradrail::ps
