#include "ps/control/heartbeat_handler.h"

#include <chrono>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/control/backup_handler.h"
#include "ps/control/non_finite_text.h"
#include "ps/control/replication.h"
#include "ps/control/stats_handler.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_channel.h"

namespace gradrail::ps {
namespace {

/// Looks for silent members in an interval of heartbeats. Each look reads all members.
constexpr int kLooksPerInterval = 16;
/// Pause between two housekeep() calls, beyond their timeout, that separates a suspended process from a busy one.
constexpr auto kLongestPause = std::chrono::seconds(1);

void add_losses(const Membership& membership, proto::HeartbeatReply& reply) {
  for (const Membership::Known& known : membership.lost_members()) {
    proto::LostWorker& lost = *reply.add_lost();
    lost.mutable_member()->set_task_index(known.worker);
    lost.mutable_member()->set_incarnation(known.incarnation);
    lost.set_name(known.name);
    lost.set_cause(known.departed);
  }
}

/// Records each worker that another ps task has lost before it joined this one, and returns them.
std::vector<WorkerIndex> learn_losses(Membership& membership, const proto::Ping& ping, RateLimitedLog& log) {
  std::vector<WorkerIndex> departed;
  for (const proto::LostWorker& lost : ping.lost()) {
    const auto [worker, incarnation] = to_member(lost.member());
    const bool is_valid = worker < kMaxWorkers && !lost.cause().empty();
    if (!is_valid || membership.has_joined(worker)) continue;
    const TimePoint now = Clock::now();
    if (!membership.join(worker, incarnation, lost.name(), now).ok()) break;  // the run is over
    membership.mark_lost(worker, incarnation, lost.cause(), now);
    log.write(fmt::format("{} was lost before it joined this task: {}", membership.name_of(worker), lost.cause()));
    departed.push_back(worker);
  }
  return departed;
}

}  // namespace

absl::Status HeartbeatHandler::on_ping(const proto::Ping& ping, proto::HeartbeatReply& reply) {
  const auto [worker, incarnation] = to_member(ping.member());
  // This check precedes the membership: a worker of a replaced task must not stay a live member here.
  GRADRAIL_RETURN_IF_ERROR(replication_.check_serving());
  std::vector<WorkerIndex> departed;
  {
    ControlState& state = context_.state;
    MutexLock lock(state.mutex);
    const TimePoint now = Clock::now();
    const absl::Status live = state.membership.heard(worker, incarnation, now);
    reply.set_aborted(state.membership.aborted());
    reply.set_epoch(state.membership.epoch());
    reply.set_chief(state.membership.chief());
    // A worker that returns can correct them after the join.
    reply.set_run_base(state.run.run_base);
    reply.set_run(state.run.run);
    const Duration next_ping = state.membership.plan_ping(worker, incarnation, now);
    reply.set_next_ping_us(static_cast<uint32_t>(next_ping / std::chrono::microseconds(1)));
    add_losses(state.membership, reply);
    // A member that has left pings until its Leave is answered: that is not an error.
    if (!live.ok() && reply.aborted().empty() && !state.membership.has_left(worker, incarnation)) return live;
    if (live.ok()) departed = learn_losses(state.membership, ping, losses_);
    // A run that was aborted applies no step without the lost workers.
    if (!state.membership.aborted().empty()) departed.clear();
    if (live.ok() && ping.has_report()) state.reports.heard(worker, incarnation, ping.report(), now);
  }
  if (!departed.empty()) {
    context_.shards.stop_expecting(departed);
    context_.state.changed.notify_all();
  }
  reply.set_dumps(stats_.dumps_asked());
  // The clock is read last: time between this reading and the reply would be taken for a difference of the clocks.
  reply.set_clock_ns(Clock::now().time_since_epoch().count());
  return absl::OkStatus();
}

void HeartbeatHandler::on_stream_end(const Membership::Member& member, uint32_t next_ping_us) {
  // The kernel detects a vanished host before its silence does if pings are rare. Its network may return.
  const bool may_return = std::chrono::microseconds(next_ping_us) > kShortestHeartbeat;
  context_.losses.report({member, "its control connection ended", may_return});
}

void HeartbeatHandler::declare_lost(const LossQueue::Loss& loss) {
  bool run_continues = true;
  {
    ControlState& state = context_.state;
    MutexLock lock(state.mutex);
    const auto& [worker, incarnation] = loss.member;
    // Several shards and the heartbeat report one loss; a report after Leave finds no live member either.
    if (!state.membership.mark_lost(worker, incarnation, loss.cause, Clock::now())) return;
    if (loss.may_return) state.membership.mark_silent(worker, incarnation, Clock::now());
    state.reports.ended(worker, incarnation, "lost: " + loss.cause);
    run_continues = state.membership.aborted().empty();
    losses_.write(fmt::format("{} was lost: {}{}", state.membership.name_of(worker), loss.cause,
                              run_continues ? fmt::format("; {} workers remain", state.membership.live_count()) : ""));
  }
  context_.state.changed.notify_all();
  // A run that was aborted applies no step without the lost member: the others could not reproduce it.
  run_continues ? context_.shards.remove_member(loss.member) : context_.shards.fence(loss.member);
}

void HeartbeatHandler::housekeep(Duration timeout) {
  LossQueue::Content reported = context_.losses.wait(timeout);
  // The pings of all members wait in the sockets of this process after its suspension: none of them is silent.
  const TimePoint now = Clock::now();
  // The time of wait() is not a suspension, so its timeout is subtracted.
  const Duration pause = now - std::exchange(housekept_, now) - timeout;
  if (reported.failure.empty()) reported.failure = backup_.why_run_is_lost();
  ControlState& state = context_.state;
  if (!reported.failure.empty()) {
    {
      MutexLock lock(state.mutex);
      state.membership.abort_run(reported.failure);
    }
    state.changed.notify_all();
  }
  for (const LossQueue::Loss& loss : reported.losses) declare_lost(loss);
  declare_non_finite();
  std::vector<Membership::Silent> silent;
  std::vector<WorkerIndex> departed;
  {
    MutexLock lock(state.mutex);
    // The call precedes silent_members(), which then allows for the pause.
    if (pause > kLongestPause) state.membership.add_pause(pause);
    state.membership.abort_if_deserted(now);
    if (now >= look_at_) {
      look_at_ = now + heartbeat_interval(state.membership.live_count()) / kLooksPerInterval;
      silent = state.membership.silent_members(now);
      // An expiry may abort the run. Then no step may be applied without the expired members.
      if (state.membership.expire_absent(now) && state.membership.aborted().empty())
        departed = state.membership.departed();
    }
  }
  if (!departed.empty()) {
    context_.shards.stop_expecting(departed);
    state.changed.notify_all();
  }
  for (const Membership::Silent& each : silent) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(each.limit).count();
    // A process that ended closes its connection immediately. Silence can also be a network that returns.
    declare_lost({each.member, fmt::format("no heartbeat for {} s", seconds), true});
  }
  bool deserted = false;
  {
    MutexLock lock(state.mutex);
    deserted = state.membership.deserted();
  }
  replication_.set_deserted(deserted);
}

void HeartbeatHandler::declare_non_finite() {
  const std::optional<NonFinite> first = context_.losses.take_non_finite();
  if (!first.has_value()) return;
  std::shared_ptr<const proto::JoinRequest> agreed;
  std::string worker;
  {
    MutexLock lock(context_.state.mutex);
    agreed = context_.state.run.agreed;
    worker = context_.state.membership.name_of(first->worker);
  }
  if (agreed == nullptr) return;  // no shard is set up without an agreement
  const Schema schema = schema_from_proto(*agreed);
  {
    MutexLock lock(context_.state.mutex);
    context_.state.non_finite = short_text(*first, schema);
  }
  non_finite_.write(log_text(*first, worker, schema));
}

bool HeartbeatHandler::finished() {
  ControlState& state = context_.state;
  MutexLock lock(state.mutex);
  // A backup has no members: only its primary can end the run.
  if (replication_.is_backup()) return state.primary.is_over || !state.membership.aborted().empty();
  return state.membership.finished();
}

std::vector<std::string> HeartbeatHandler::workers() {
  MutexLock lock(context_.state.mutex);
  return context_.state.membership.live_names();
}

std::vector<std::string> HeartbeatHandler::awaited() {
  if (replication_.is_backup()) return {};
  MutexLock lock(context_.state.mutex);
  std::vector<std::string> names = context_.state.membership.never_joined();
  if (context_.state.membership.live_count() > 0) return names;
  for (std::string& name : context_.state.membership.may_return()) names.push_back(std::move(name));
  return names;
}

}  // namespace gradrail::ps
