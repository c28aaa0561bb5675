#include "ps/control/backup_handler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/types/span.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/control/replication.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/mac.h"
#include "transport/registry.h"

namespace gradrail::ps {
namespace {

/// Time for the workers of a restarted primary to join here. A worker joins when its step is done. The time is shorter
/// than --rejoin-timeout, within which a worker that cannot join here needs the primary.
constexpr auto kWaitForWorkers = std::chrono::seconds(25);
constexpr auto kWaitForWorkersAtLeast = std::chrono::seconds(10);

}  // namespace

absl::Status BackupHandler::mirror(const proto::ReplicateRequest& request, proto::ReplicateReply& reply) {
  GRADRAIL_RETURN_IF_ERROR(check_protocol_version(request.protocol_version()));
  // This check precedes the lock: the answer depends on flags only.
  if (!replication_.has_peer()) {
    const absl::Status why = Replication::no_peer_error();
    // This side would wait for workers that never join it.
    if (!said_no_peer_.test_and_set()) log_warning("a ps task has this task as its backup: {}", message_of(why));
    return why;
  }
  MutexLock setup_lock(setup_.mutex);
  reply.set_process(replication_.process());
  // The lower term belongs to the former primary, which this task has replaced.
  if (!replication_.is_backup() && request.term() < replication_.term()) {
    reply.set_taken_over(true);
    return absl::OkStatus();
  }
  // The replication peer has taken over while this task was cut off from it: its term is higher, so its run counts.
  if (!replication_.is_backup() && request.term() > replication_.term()) replication_.on_replaced();
  if (!replication_.is_backup()) return absl::UnavailableError("this ps task serves itself");
  GRADRAIL_RETURN_IF_ERROR(check_options(request));
  return accept(request, reply);
}

absl::Status BackupHandler::check_options(const proto::ReplicateRequest& request) const {
  if (request.shards() != context_.shards.size()) {
    return absl::FailedPreconditionError(
        fmt::format("the backup has {} shards, its primary has {}: give both the same --shards", context_.shards.size(),
                    request.shards()));
  }
  if (const bool encrypts = context_.options.security.encrypt_data; request.encrypts_data() != encrypts) {
    return absl::FailedPreconditionError(
        fmt::format("the backup was started {} --encrypt-data, its primary {}: give it to all tasks, or to none",
                    encrypts ? "with" : "without", encrypts ? "without" : "with"));
  }
  const std::string& folder = context_.checkpoint_folder;
  if (request.checkpoint_folder() != folder) {
    const char* what = folder.empty() ? "the backup has no checkpoint folder, its primary has one"
                       : request.checkpoint_folder().empty()
                           ? "the backup has a checkpoint folder, its primary has none"
                           : "the backup has another checkpoint folder than its primary";
    return absl::FailedPreconditionError(
        fmt::format("{}: give all ps tasks one shared --checkpoint_dir, or none", what));
  }
  return absl::OkStatus();
}

/// Whether the workers of a primary that was restarted without its parameters may still join here, where the parameters
/// are.
bool BackupHandler::waits_for_workers(const proto::ReplicateRequest& request) {
  GRADRAIL_CHECK(setup_.primary.message != nullptr);
  const proto::ReplicateRequest& last = *setup_.primary.message;
  if (request.process() == last.process() || last.generation() == 0) return false;
  setup_.primary.has_restarted = true;
  // away_limit is --rejoin-timeout and 30 s; a third of it stays below what the worker waits.
  const Duration limit = std::clamp<Duration>(context_.options.away_limit / 3, kWaitForWorkersAtLeast, kWaitForWorkers);
  {
    MutexLock lock(context_.state.mutex);
    if (Clock::now() - context_.state.primary.heard > limit) return false;
  }
  const auto& workers = last.workers();
  const auto is_live = [](const proto::ReplicateRequest::Worker& worker) { return worker.departed().empty(); };
  if (std::none_of(workers.begin(), workers.end(), is_live)) return false;
  // No worker can continue here without complete state, so there is nothing to wait for.
  return std::all_of(context_.shards.begin(), context_.shards.end(),
                     [](const auto& shard) { return shard->may_take_over({}, true).ok(); });
}

absl::Status BackupHandler::accept(const proto::ReplicateRequest& request, proto::ReplicateReply& reply) {
  if (waits_for_workers(request)) {
    reply.set_keeps(true);
    return absl::OkStatus();
  }
  // A call that timed out at the primary may still run here and overtake a later one.
  if (request.process() == setup_.primary.message->process() && request.number() < setup_.primary.message->number())
    return absl::UnavailableError("a later message arrived before this one");
  setup_.primary.has_no_run = request.generation() == 0;
  GRADRAIL_RETURN_IF_ERROR(follow_agreement(request));
  GRADRAIL_CHECK(request.generation() == 0 || setup_.agreement.exists());
  setup_.primary.message = std::make_shared<const proto::ReplicateRequest>(request);
  setup_.primary.has_restarted = false;
  replication_.set_peer_port(request.port());
  {
    MutexLock lock(context_.state.mutex);
    context_.state.primary = {.heard = Clock::now(), .is_over = request.over()};
    // The backup ends with the cause of its primary, not with a loss.
    if (request.over() && !request.aborted().empty()) context_.state.membership.abort_run(request.aborted());
  }
  // The main thread may find that the run is over.
  context_.losses.wake();
  // Each answer has the token: the answer to the message that made it may have been lost.
  reply.set_token(setup_.primary.token);
  reply.set_host_id(transport::host_id());
  context_.shards.describe(reply);
  return absl::OkStatus();
}

/// Sets the shards up as those of the primary are.
absl::Status BackupHandler::follow_agreement(const proto::ReplicateRequest& request) {
  if (request.generation() == 0) return absl::OkStatus();
  const proto::ReplicateRequest& last = *setup_.primary.message;
  const bool is_other = request.process() != last.process() || request.generation() != last.generation();
  if (is_other) {
    setup_.agreement.reset();
    // Should the rest fail, the shards hold a mixture: this task must not take over with it.
    auto incomplete = std::make_shared<proto::ReplicateRequest>(last);
    incomplete->set_generation(0);
    setup_.primary.message = std::move(incomplete);
    GRADRAIL_RETURN_IF_ERROR(setup_.agreement.agree(request.agreed(), false));
    setup_.agreement.set_began_from(from_proto(request.began_from()));
  }
  if (is_other || request.reconnect()) {
    // A connection of the former process, or of the former state, must not write here any more.
    setup_.primary.token = new_token();
    const std::string key = data_key(context_.options.security.secret, setup_.primary.token);
    for (const auto& shard : context_.shards) GRADRAIL_RETURN_IF_ERROR(shard->expect_primary(key));
  }
  if (setup_.agreement.exists() &&
      (setup_.agreement.run_base() != request.run_base() || setup_.agreement.run() != request.run())) {
    setup_.agreement.set_run(request.run(), request.run_base());
  }
  return absl::OkStatus();
}

void BackupHandler::begin_without_primary() {
  MutexLock setup_lock(setup_.mutex);
  if (!replication_.is_backup() || !setup_.primary.has_no_run) return;
  {
    MutexLock lock(context_.state.mutex);
    const PrimaryStatus primary = context_.state.primary;
    const bool is_lost = !primary.is_over && Clock::now() - primary.heard > context_.options.heartbeat_timeout;
    // The shards of a task that has followed a former run have its state.
    if (!is_lost || context_.state.run.generation > 0) return;
  }
  setup_.primary.has_no_run = false;
  replication_.take_over(setup_.primary.message->process(), setup_.primary.message->term() + 1);
}

absl::Status BackupHandler::take_over(const proto::JoinRequest& request, RunSetup& setup) {
  GRADRAIL_CHECK(&setup == &setup_);  // the parameter only shows clang which lock the caller holds
  if (!replication_.has_peer()) return Replication::no_peer_error();
  if (!request.has_take_over()) return replication_.still_backup_error();
  const proto::ReplicateRequest& last = *setup.primary.message;
  if (!setup.agreement.exists() || (replication_.is_backup() && last.generation() == 0)) {
    return absl::FailedPreconditionError(
        fmt::format("this backup has received no state from {} yet", replication_.replication_peer_name()));
  }
  // The worker continues its steps. Parameters of an earlier group do not have them.
  if (request.group() != setup.agreement.group()) {
    return absl::FailedPreconditionError(
        fmt::format("this backup of {} cannot take over: it has the state of an earlier group of parameter servers",
                    replication_.replication_peer_name()));
  }
  bool is_primary_unreachable = setup.primary.has_restarted;
  {
    MutexLock lock(context_.state.mutex);
    // A primary whose messages arrive here serves: a worker that alone cannot reach it must not split the run.
    is_primary_unreachable =
        is_primary_unreachable || Clock::now() - context_.state.primary.heard > context_.options.heartbeat_timeout;
  }
  GRADRAIL_RETURN_IF_ERROR(check_versions(request, setup.agreement, is_primary_unreachable));
  if (!replication_.is_backup()) return absl::OkStatus();  // another worker was first
  // Versions alone do not show it: they are 0 before the initial values and after them.
  if (!request.newcomer() && !context_.shards.have_values()) {
    return absl::FailedPreconditionError(
        fmt::format("the backup of {} cannot take over: it has no initial values, and the worker has started",
                    replication_.replication_peer_name()));
  }
  std::vector<Membership::Known> known;
  std::vector<Shard::Successor> members;
  for (const proto::ReplicateRequest::Worker& worker : last.workers()) {
    const auto [index, incarnation] = to_member(worker.member());
    known.push_back({index, incarnation, worker.name(), worker.departed()});
    // Departed members are included: their late pushes must be recognized as done.
    members.push_back({index, incarnation, worker.departed().empty()});
  }
  for (const auto& shard : context_.shards) GRADRAIL_RETURN_IF_ERROR(shard->take_over(members));
  const bool have_values = context_.shards.have_values();
  {
    MutexLock lock(context_.state.mutex);
    context_.state.membership.restore(known, Clock::now());
    if (last.continued()) context_.state.membership.mark_continued(Clock::now());
    if (have_values) context_.state.membership.mark_initialised(Clock::now());
  }
  // The role changes last: after a failure above this is still a backup, to which the next worker can send its request.
  replication_.take_over(last.process(), last.term() + 1);
  return absl::OkStatus();
}

/// Checks that the parameters of the answers to a worker are here: the worker would otherwise compute from values that
/// are lost.
absl::Status BackupHandler::check_versions(const proto::JoinRequest& request, const RunAgreement& agreement,
                                           bool is_primary_unreachable) const {
  // Both are of the buckets of all shards, one shard after the other.
  absl::Span<const uint64_t> versions = request.take_over().versions(), steps = request.take_over().steps();
  const auto take = [](absl::Span<const uint64_t>& from, size_t count) {
    const absl::Span<const uint64_t> taken = from.first(std::min(count, from.size()));
    from.remove_prefix(taken.size());
    return std::vector<uint64_t>(taken.begin(), taken.end());
  };
  ShardClaim claim = {.worker = request.member().task_index(), .incarnation = request.member().incarnation()};
  for (size_t i = 0; i < context_.shards.size(); ++i) {
    claim.versions = take(versions, agreement.bucket_count(i));
    claim.steps = take(steps, agreement.bucket_count(i));
    if (const absl::Status may = context_.shards[i].may_take_over(claim, is_primary_unreachable); !may.ok()) {
      return absl::Status(may.code(), fmt::format("the backup of {} cannot take over: {}",
                                                  replication_.replication_peer_name(), message_of(may)));
    }
  }
  return absl::OkStatus();
}

void BackupHandler::resume(const proto::JoinRequest& request) {
  const Membership::Member member = to_member(request.member());
  {
    MutexLock lock(context_.state.mutex);
    for (const proto::JoinRequest::TakeOver::Barrier& barrier : request.take_over().barriers()) {
      // The others would otherwise wait for an entry that only the lost primary has recorded.
      context_.state.membership.enter_barrier(barrier.name(), barrier.generation(), member.worker, member.incarnation);
    }
  }
  context_.state.changed.notify_all();
  if (request.take_over().steps_are_done()) context_.shards.mark_finished(member);
}

std::string BackupHandler::why_run_is_lost() {
  Duration silent{};
  {
    ControlState& state = context_.state;
    MutexLock lock(state.mutex);
    if (!replication_.is_backup() || state.primary.heard == TimePoint() || state.primary.is_over) return "";
    silent = Clock::now() - state.primary.heard;
  }
  const ServerOptions& options = context_.options;
  if (silent > options.away_limit) {
    return fmt::format("{} was lost, and no worker has requested a takeover by its backup",
                       replication_.replication_peer_name());
  }
  if (options.begins_as_backup || silent < options.heartbeat_timeout) return "";
  // This task began as the primary, so the lost one restarts as a backup: two backups would wait for each other. A
  // restart of this task makes it serve.
  for (const auto& shard : context_.shards) {
    if (shard->may_take_over({}, true).ok()) continue;
    return fmt::format("{} was lost before its backup had everything", replication_.replication_peer_name());
  }
  return "";
}

}  // namespace gradrail::ps
