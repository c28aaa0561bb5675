#include "worker/client/session/failover.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "worker/client/session/stop.h"

namespace gradrail::worker {
namespace {

/// Time limit of describe(): a running backup answers within milliseconds.
constexpr auto kDescribeDeadline = std::chrono::seconds(2);
/// A backup refuses a takeover while its primary may still serve. It declares the primary lost after the silence limit.
/// The worker waits this much longer than that limit.
constexpr auto kTakeOverDeadline = std::chrono::seconds(15);
constexpr auto kBetweenFailovers = std::chrono::milliseconds(50);
/// A call fails immediately when its ps is lost; the heartbeat, which records the loss, may need this long.
constexpr auto kDetectDeadline = std::chrono::seconds(10);
constexpr auto kFailoverDeadline = std::chrono::seconds(20);

}  // namespace

/// A ps task that may replace the lost one, and its answers.
struct Failover::Successor {
  std::unique_ptr<ControlLink> control;
  bool is_at_backup_address = false;
  std::optional<ps::proto::DescribeReply> described = {};
  ps::proto::JoinReply joined = {};
};

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
  if (failed.ok() || !session_.has_backups() || !is_server_loss(failed)) return failed;
  while (true) {
    // Further ps tasks may be lost during a failover: the next round finds them.
    const RunFailure::LostServers lost = failure_.take_lost_servers();
    if (lost.empty()) return failure_.status();
    for (const auto& [ps_index, cause] : lost) {
      const absl::Status switched = switch_to_successor(ps_index, cause);
      if (switched.ok()) continue;
      log_warning("its backup did not take over: {}", std::string(message_of(switched)));
      failure_.abandon_failover();
      failure_.fail(cause);
      return failure_.status();
    }
  }
}

absl::Status Failover::switch_to_successor(uint32_t ps_index, const absl::Status& cause) {
  paths_.close_paths(ps_index);  // before the request, which has the steps that were answered
  GRADRAIL_ASSIGN_OR_RETURN(Successor successor, find_successor(ps_index));
  // The successor counts this worker as a member from here on, and its heartbeat must start.
  session_.switch_to(ps_index, std::move(successor.control), successor.joined, successor.is_at_backup_address);
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> first_steps,
                            session_.first_steps_in(successor.joined, ps_index));
  GRADRAIL_RETURN_IF_ERROR(connect_shards(ps_index, *successor.described, successor.joined));
  exchange_.lower_first_steps(first_steps);
  telemetry_.count_takeover();
  options_.hooks.log(fmt::format("{}; {} ({}) has taken over at step {}, no step of this worker lost",
                                 message_of(cause),
                                 successor.is_at_backup_address ? "its backup" : "a new task at its address",
                                 session_.control(ps_index).address(), successor.joined.global_step()));
  return absl::OkStatus();
}

/// Queries the backup, and the task at the address of the lost one. A worker in a long step may miss two takeovers: the
/// second one makes the task at the former address serve again.
absl::StatusOr<Failover::Successor> Failover::find_successor(uint32_t ps_index) {
  TimePoint deadline = Clock::now() + kTakeOverDeadline;
  bool was_refused = false;  // the backup refused finally in the previous round
  for (bool answered = false;; std::this_thread::sleep_for(kBetweenFailovers)) {
    Successor backup = {.control = session_.open_control(ps_index, Session::Role::backup, options_.hooks.log),
                        .is_at_backup_address = true};
    absl::Status from_backup = request_takeover(ps_index, backup, Clock::now() + kDescribeDeadline, deadline);
    if (from_backup.ok()) return backup;
    const auto silent = [](const std::string&) {};
    Successor former = {.control = session_.open_control(ps_index, Session::Role::serving, silent)};
    const absl::Status from_former = request_takeover(ps_index, former, Clock::now(), Clock::now());
    if (from_former.ok()) return former;
    if (!answered && backup.described.has_value()) {
      answered = true;
      deadline += std::chrono::milliseconds(backup.described->heartbeat_timeout_ms());
    }
    // UNAVAILABLE: the backup still receives messages of its primary, or is busy. Any other answer is its decision,
    // and its second one counts: between the first answer and the end of its primary it may have received everything.
    const bool is_undecided = backup.described.has_value() && absl::IsUnavailable(from_backup);
    const bool is_refused = backup.described.has_value() && !is_undecided;
    const bool serves_without_us = former.described.has_value() && !former.described->backup();
    const bool is_final = (is_refused && was_refused) || (serves_without_us && !is_undecided);
    if (is_final || asked_to_stop(options_) || Clock::now() >= deadline) return from_backup;
    was_refused = is_refused;
  }
}

/// Requests that a task replaces the lost one.
/// Errors  DEADLINE_EXCEEDED: the task does not answer. Errors of its join: the task does not replace the lost one.
absl::Status Failover::request_takeover(uint32_t ps_index, Successor& task, TimePoint describe_deadline,
                                        TimePoint join_deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(task.described, task.control->describe(session_.describe_request(), describe_deadline));
  GRADRAIL_ASSIGN_OR_RETURN(task.joined, task.control->join(takeover_request(ps_index), join_deadline));
  return absl::OkStatus();
}

ps::proto::JoinRequest Failover::takeover_request(uint32_t ps_index) const {
  const PathManager::Links& links = paths_.links();
  const auto first = std::find_if(links.begin(), links.end(), [&](const auto& l) { return l->ps_index == ps_index; });
  GRADRAIL_CHECK(first != links.end());
  ps::proto::JoinRequest request = session_.join_request((*first)->shard_index);
  ps::proto::JoinRequest::TakeOver& take_over = *request.mutable_take_over();
  // The request has the newest versions that this worker has received: a task without these updates must refuse.
  for (const auto& link : links) {
    if (link->ps_index != ps_index) continue;
    for (const uint64_t version : exchange_.versions(link->shard_index)) take_over.add_versions(version);
    // Its version may be newer although it lacks steps of this worker: other workers have continued there.
    if (session_.sums()) continue;
    for (const uint64_t step : exchange_.answered_steps(link->shard_index)) take_over.add_steps(step);
  }
  for (const auto& [name, generation] : session_.barrier_generations()) {
    ps::proto::JoinRequest::TakeOver::Barrier& barrier = *take_over.add_barriers();
    barrier.set_name(name);
    barrier.set_generation(generation);
  }
  take_over.set_steps_are_done(session_.steps_finished());
  return request;
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
    set_endpoints(*link, joined.shards(shard++));
    paths_.set_server(*link, described);
    GRADRAIL_RETURN_IF_ERROR(paths_.connect_again(*link, Clock::now() + kFailoverDeadline));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::worker
