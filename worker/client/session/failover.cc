#include "worker/client/session/failover.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "spdlog/spdlog.h"

namespace gradrail::worker {
namespace {

/// A backup that runs answers at once.
constexpr auto kDescribeDeadline = std::chrono::seconds(2);
/// A backup refuses while its primary may still serve. It takes the primary for lost after the silence limit; this is
/// the time beyond that limit.
constexpr auto kTakeOverDeadline = std::chrono::seconds(15);
constexpr auto kBetweenFailovers = std::chrono::milliseconds(50);
/// A call fails at once when its ps is lost; the heartbeat, which records the loss, may need this long.
constexpr auto kDetectDeadline = std::chrono::seconds(10);
constexpr auto kFailoverDeadline = std::chrono::seconds(20);

}  // namespace

Failover::Failover(const ClientOptions& options, RunFailure& failure, Telemetry& telemetry, Exchange& exchange,
                   PathManager& paths, Session& session)
    : options_(options),
      failure_(failure),
      telemetry_(telemetry),
      exchange_(exchange),
      paths_(paths),
      session_(session) {}

bool Failover::survives(const absl::Status& call) {
  if (!session_.has_backups() || !absl::IsUnavailable(call)) return false;
  const TimePoint deadline = Clock::now() + kDetectDeadline;
  while (!failure_.failed() && Clock::now() < deadline) std::this_thread::sleep_for(kBetweenFailovers);
  return failure_.failed() && recover().ok();
}

absl::Status Failover::recover() {
  absl::Status failed = failure_.status();
  // Any other error ends the run, whether a ps was lost as well or not.
  if (failed.ok() || !session_.has_backups() || !absl::IsUnavailable(failed)) return failed;
  while (true) {
    // Further ps tasks may be lost during a failover: the next round finds them.
    const RunFailure::LostServers lost = failure_.take_lost_servers();
    if (lost.empty()) return failure_.status();
    for (const auto& [ps_index, cause] : lost) {
      const absl::Status switched = switch_to_backup(ps_index, cause);
      if (switched.ok()) continue;
      spdlog::warn("its backup did not take over: {}", std::string(message_of(switched)));
      failure_.abandon_failover();
      failure_.fail(asked_to_stop() ? absl::CancelledError(fmt::format("stopped while {}", message_of(cause))) : cause);
      return failure_.status();
    }
  }
}

absl::Status Failover::switch_to_backup(uint32_t ps_index, const absl::Status& cause) {
  auto control = session_.open_control(ps_index, session_.backup_address(ps_index), options_.notice);
  const absl::StatusOr<ps::proto::DescribeReply> described = describe_backup(ps_index, *control);
  if (!described.ok()) return described.status();
  const absl::StatusOr<ps::proto::JoinReply> joined =
      request_takeover(ps_index, *control, std::chrono::milliseconds(described->heartbeat_timeout_ms()));
  if (!joined.ok()) return joined.status();
  // From here on the backup counts this worker as a member, and its heartbeat must start.
  session_.switch_to_backup(ps_index, std::move(control));
  GRADRAIL_RETURN_IF_ERROR(connect_shards(ps_index, *described, *joined));
  telemetry_.count_takeover();
  options_.notice(fmt::format("{}; its backup ({}) has taken over at step {}, no step lost", message_of(cause),
                              session_.serving_address(ps_index), joined->global_step()));
  return absl::OkStatus();
}

/// Asks a backup that is busy or disconnected for a moment once more: it alone has the state of the run. The attempts
/// end when the primary serves again.
absl::StatusOr<ps::proto::DescribeReply> Failover::describe_backup(uint32_t ps_index, ControlLink& backup) {
  const TimePoint deadline = Clock::now() + kTakeOverDeadline;
  while (true) {
    absl::StatusOr<ps::proto::DescribeReply> described = backup.describe(Clock::now() + kDescribeDeadline);
    if (described.ok() || !absl::IsDeadlineExceeded(described.status()) || Clock::now() >= deadline) return described;
    const auto silent = [](const std::string&) {};
    const auto primary = session_.open_control(ps_index, session_.serving_address(ps_index), silent);
    const absl::StatusOr<ps::proto::DescribeReply> serving = primary->describe(Clock::now());
    if (serving.ok() && !serving->backup()) return described;
  }
}

absl::StatusOr<ps::proto::JoinReply> Failover::request_takeover(uint32_t ps_index, ControlLink& backup,
                                                                Duration heartbeat_timeout) {
  const PathManager::Links& links = paths_.links();
  const auto first = std::find_if(links.begin(), links.end(), [&](const auto& l) { return l->ps_index == ps_index; });
  GRADRAIL_CHECK(first != links.end());
  ps::proto::JoinRequest request = session_.join_request((*first)->shard_index);
  ps::proto::JoinRequest::TakeOver& take_over = *request.mutable_take_over();
  // The newest versions that this worker has seen: a backup without these updates must refuse.
  for (const auto& link : links) {
    if (link->ps_index != ps_index) continue;
    for (const uint64_t version : exchange_.versions(link->shard_index)) take_over.add_versions(version);
  }
  for (const auto& [name, generation] : session_.barrier_generations()) {
    ps::proto::JoinRequest::TakeOver::Barrier& barrier = *take_over.add_barriers();
    barrier.set_name(name);
    barrier.set_generation(generation);
  }
  take_over.set_steps_are_done(session_.steps_finished());
  // UNAVAILABLE: the backup still hears its primary, or is busy. Other errors are its decision.
  const TimePoint deadline = Clock::now() + heartbeat_timeout + kTakeOverDeadline;
  while (true) {
    absl::StatusOr<ps::proto::JoinReply> reply = backup.join(request, deadline);
    if (reply.ok() || !absl::IsUnavailable(reply.status()) || asked_to_stop() || Clock::now() >= deadline) return reply;
    std::this_thread::sleep_for(kBetweenFailovers);
  }
}

absl::Status Failover::connect_shards(uint32_t ps_index, const ps::proto::DescribeReply& described,
                                      const ps::proto::JoinReply& joined) {
  int shard = 0;
  for (const auto& link : paths_.links()) {
    if (link->ps_index != ps_index) continue;
    if (shard >= joined.shards_size()) return absl::FailedPreconditionError("the backup has fewer shards");
    const ControlLink& control = session_.control(ps_index);
    link->server = control.name();
    link->address = control.address();
    link->token = joined.token();
    const auto& endpoints = joined.shards(shard++).endpoints();
    link->endpoints = {endpoints.begin(), endpoints.end()};
    paths_.set_server(*link, described);
    GRADRAIL_RETURN_IF_ERROR(paths_.connect_again(*link, Clock::now() + kFailoverDeadline));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::worker
