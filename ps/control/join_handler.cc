#include "ps/control/join_handler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/control/backup_handler.h"
#include "ps/control/heartbeat_handler.h"
#include "ps/control/parent.h"
#include "ps/control/replication.h"
#include "ps/control/stats_handler.h"
#include "ps/protocol/altered_data.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/mac.h"
#include "transport/registry.h"

namespace gradrail::ps {
namespace {

/// Error of a run that ended without an error. A program that joins once more needs servers that have just started.
absl::Status run_has_ended() {
  return absl::FailedPreconditionError(
      "the run has ended: all of its workers have left, and no worker can join any more; start the parameter servers "
      "again for another run");
}

/// Longest time of a join while shards copy or the backup is slow. A worker pings only after it.
constexpr auto kLongestJoin = std::chrono::seconds(10);

}  // namespace

absl::Status JoinHandler::describe(const proto::DescribeRequest& request, proto::DescribeReply& reply) {
  // The version is set before the check, so that the caller gets it also from a refusal.
  reply.set_protocol_version(kProtocolVersion);
  GRADRAIL_RETURN_IF_ERROR(check_protocol_version(request.protocol_version()));
  if (heartbeat_.finished() && context_.state.aborted().empty()) return run_has_ended();
  if (request.lost_primary()) backup_.begin_without_primary();
  const ServerOptions& options = context_.options;
  // The worker reads the difference in the reply and ends.
  if (const bool encrypts = options.security.encrypt_data; request.encrypts_data() != encrypts) {
    rate_limited_log_.write(fmt::format(
        "worker {} does not fit: it was started {} --encrypt-data, and this task {}: give it to all tasks, or to none",
        request.task_index(), encrypts ? "without" : "with", encrypts ? "with" : "without"));
  }
  reply.set_shard_count(static_cast<uint32_t>(context_.shards.size()));
  reply.set_host_id(transport::host_id());
  reply.set_checkpoint_folder(context_.checkpoint_folder);
  reply.set_on_gpu(options.device != "host");
  reply.set_process(replication_.process());
  reply.set_encrypts_data(options.security.encrypt_data);
  // A worker with another idea of --backup-ps stops here with a clear message.
  reply.set_replicated(replication_.has_peer());
  reply.set_heartbeat_timeout_ms(static_cast<uint32_t>(options.heartbeat_timeout / std::chrono::milliseconds(1)));
  // A task that was replaced counts as a backup too: the worker then uses the other address.
  reply.set_backup(replication_.is_backup() || !replication_.check_serving().ok());
  GRADRAIL_CHECK(context_.shards.size() > 0);
  // All shards of a task open the same transports.
  for (const Shard::Endpoint& endpoint : context_.shards[0].endpoints()) {
    proto::DescribeReply::Transport* transport = reply.add_transports();
    transport->set_name(endpoint.transport);
    transport->set_refused(endpoint.refused);
  }
  return absl::OkStatus();
}

absl::Status JoinHandler::join(const proto::JoinRequest& request, proto::JoinReply& reply) {
  absl::Status joined = try_join(request, reply);
  if (joined.ok() && replication_.has_peer()) {
    replication_.wait_for_backup();  // a backup without this member would not wait for it after a takeover
    joined = replication_.check_serving();
  }
  // The time of the join is over: from here on the worker is lost after the usual silence.
  if (joined.ok()) {
    const absl::Status live = context_.state.heard(to_member(request.member()));
    if (!live.ok()) joined = absl::UnavailableError(std::string(message_of(live)));
  }
  if (!joined.ok()) log_refusal(request, joined);
  if (joined.ok() && context_.options.on_join) context_.options.on_join(request.member().task_index());
  return joined;
}

/// A worker retries while the loss of its predecessor is not detected: one line is enough.
void JoinHandler::log_refusal(const proto::JoinRequest& request, const absl::Status& why) {
  const uint64_t incarnation = request.member().incarnation();
  if (refused_incarnation_.exchange(incarnation) == incarnation) return;
  rate_limited_log_.write(fmt::format("worker {} ({}) was not admitted: {}", request.member().task_index(),
                                      request.worker_name(), message_of(why)));
}

absl::Status JoinHandler::try_join(const proto::JoinRequest& request, proto::JoinReply& reply) {
  GRADRAIL_RETURN_IF_ERROR(check_protocol_version(request.protocol_version()));
  GRADRAIL_RETURN_IF_ERROR(replication_.check_serving());
  // The worker's group contains a process that does not exist any more: no other worker will ever name that group.
  if (request.process() != 0 && request.process() != replication_.process())
    return absl::UnavailableError("it was started again since this worker has looked for it");
  MutexLock setup_lock(setup_.mutex);
  // The check is needed also after a takeover: the second worker must pass the check of versions too.
  if (replication_.is_backup() || request.has_take_over()) {
    GRADRAIL_RETURN_IF_ERROR(backup_.take_over(request, setup_));
  }
  GRADRAIL_RETURN_IF_ERROR(setup_.agreement.agree(request, !replication_.is_backup()));
  // A late answer of the replication peer may have made this task the backup in the meantime.
  if (replication_.is_backup()) return replication_.still_backup_error();
  GRADRAIL_RETURN_IF_ERROR(add_left_steps(request, reply));  // called before the new incarnation replaces that one
  reply.set_dumps(stats_.dumps_asked());                     // before the worker is a member: it answers later requests
  GRADRAIL_ASSIGN_OR_RETURN(std::string token, admit(request));
  if (request.has_take_over()) backup_.resume(request);
  reply.set_token(std::move(token));
  return fill(reply, setup_.agreement);
}

/// A worker that was cut off together with the primary has made steps there, which this former backup does not have.
absl::Status JoinHandler::add_left_steps(const proto::JoinRequest& request, proto::JoinReply& reply) const {
  if (request.left_incarnation() == 0) return absl::OkStatus();
  std::vector<uint64_t> least;  // least step of each fragment
  for (const auto& shard : context_.shards) {
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps,
                              shard->done_steps(request.member().task_index(), request.left_incarnation()));
    if (steps.empty()) return absl::OkStatus();
    least.resize(steps.size(), UINT64_MAX);
    for (size_t i = 0; i < steps.size(); ++i) least[i] = std::min(least[i], steps[i]);
  }
  reply.mutable_left_steps()->Assign(least.begin(), least.end());
  return absl::OkStatus();
}

absl::Status JoinHandler::fill(proto::JoinReply& reply, const RunAgreement& agreement) {
  bool initialised = true;
  std::vector<uint64_t> next_steps;  // next step of each fragment
  for (const auto& shard : context_.shards) {
    GRADRAIL_ASSIGN_OR_RETURN(const Shard::Stats stats, shard->stats());
    initialised = initialised && stats.initialised;
    next_steps.resize(stats.next_steps.size(), UINT64_MAX);
    for (size_t i = 0; i < next_steps.size(); ++i) next_steps[i] = std::min(next_steps[i], stats.next_steps[i]);
    // Buckets are updated one after the other, so that shards can differ by a step.
    reply.set_global_step(std::max<uint64_t>(reply.global_step(), stats.version));
  }
  reply.set_initialised(initialised);
  // Each incarnation counts its own steps in async.
  if (!agreement.mode().waits()) next_steps.assign(next_steps.size(), 1);
  reply.mutable_first_steps()->Assign(next_steps.begin(), next_steps.end());
  reply.set_base_step(agreement.run_base());
  reply.set_run(agreement.run());
  *reply.mutable_began_from() = to_proto(agreement.began_from());
  const Parent* const parent = context_.options.parent.get();
  reply.set_saves_checkpoints(parent != nullptr ? parent->saves_checkpoints()
                                                : !context_.options.checkpoint_dir.empty());
  context_.shards.describe(reply);
  MutexLock lock(context_.state.mutex);
  reply.set_chief(context_.state.membership.chief());
  return absl::OkStatus();
}

/// Returns the token that admits the data connections of the worker.
absl::StatusOr<std::string> JoinHandler::admit(const proto::JoinRequest& request) {
  const Membership::Member member = to_member(request.member());
  {
    ControlState& state = context_.state;
    MutexLock lock(state.mutex);
    // The check and the join hold one lock: this task ends as soon as it finds that the run has finished.
    if (state.membership.finished() && state.membership.aborted().empty()) return run_has_ended();
    const bool is_continued =
        request.has_left_group() && !request.newcomer() && request.left_group() != request.group();
    if (is_continued) state.membership.mark_continued(Clock::now());
    GRADRAIL_RETURN_IF_ERROR(
        // The time is in the future by the longest join: the worker sends no ping before the reply.
        state.membership.join(member.worker, member.incarnation, request.worker_name(), Clock::now() + kLongestJoin));
  }
  context_.state.changed.notify_all();
  // The membership is first: a shard that loses the new connection immediately reports a member that exists.
  std::string token = new_token();
  const std::string key = data_key(context_.options.security.secret, token);
  for (const auto& shard : context_.shards) {
    GRADRAIL_RETURN_IF_ERROR(shard->admit(member.worker, member.incarnation, key));
  }
  absl::Status live;
  {
    MutexLock lock(context_.state.mutex);
    live = context_.state.membership.heard(member.worker, member.incarnation, Clock::now() + kLongestJoin);
  }
  if (!live.ok()) {
    // It was declared lost while a shard was busy. That shard may have removed it before it was admitted there.
    context_.shards.remove_member(member);
    return absl::UnavailableError(std::string(message_of(live)));
  }
  return token;
}

absl::Status JoinHandler::leave(const proto::LeaveRequest& request, proto::LeaveReply& reply) {
  const Membership::Member member = to_member(request.member());
  ControlState& state = context_.state;
  // The worker still evaluates the model: it needs parameters, but no step waits for it.
  if (request.stays()) {
    if (const absl::Status live = state.heard(member); absl::IsOutOfRange(live)) return live;  // it joins again first
    context_.shards.mark_finished(member);
    return absl::OkStatus();
  }
  if (request.returns()) {
    {
      MutexLock lock(state.mutex);
      state.membership.mark_away(member.worker, member.incarnation,
                                 "it searches for a parameter server that it has lost", Clock::now());
    }
    state.changed.notify_all();
    // The member is fenced and not removed: it returns, and a removal would apply steps without its gradients.
    context_.shards.fence(member);
    return absl::OkStatus();
  }
  if (!request.failed().empty()) {
    // An attacker may have cut the data connection, so that the shard has not received the report. Only a member ends
    // the run.
    const bool is_altered = is_altered_data(request.failed());
    if (is_altered && state.heard(member).ok()) context_.losses.report_failure(request.failed());
    // The text is escaped because other tasks print it.
    heartbeat_.declare_lost({member, escaped(request.failed())});
    return absl::OkStatus();
  }
  // The worker means the task that has taken over from this one.
  if (replication_.is_backup()) return replication_.still_backup_error();
  {
    MutexLock lock(state.mutex);
    // The check and the end of the membership hold one lock: of workers that leave together, exactly one is the last.
    if (request.unless_last()) {
      // A member that was lost by silence joins again: it may be the last, and only a member can save.
      const absl::Status live = state.membership.heard(member.worker, member.incarnation, Clock::now());
      if (absl::IsOutOfRange(live)) return live;
      reply.set_is_last(state.membership.is_last(member.worker, member.incarnation));
      if (reply.is_last()) return absl::OkStatus();
    }
    // The leave precedes the end of its connections at the shards: their reports then find no live member, and no loss
    // is recorded.
    state.membership.leave(member.worker, member.incarnation);
    state.reports.ended(member.worker, member.incarnation, "left");
  }
  state.changed.notify_all();
  context_.shards.remove_member(member);
  replication_.wait_for_backup();  // a backup that takes over now must not wait for this worker
  // The main thread then detects the end of the run immediately.
  context_.losses.wake();
  return replication_.check_serving();
}

}  // namespace gradrail::ps
