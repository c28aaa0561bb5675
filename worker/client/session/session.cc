#include "worker/client/session/session.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_channel.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/security.h"
#include "ps/protocol/training.h"
#include "worker/client/session/stop.h"

namespace gradrail::worker {
namespace {

/// Time limit of a further join. One of several ps tasks may be restarted between describe() and join(): the attempt
/// ends soon, and the next one begins with another description.
constexpr auto kJoinAgainDeadline = std::chrono::seconds(5);
/// Time limit of describe(): a running backup answers within milliseconds; a longer wait would delay the attempt at the
/// other address.
constexpr auto kDescribeDeadline = std::chrono::seconds(2);
constexpr auto kBetweenJoins = std::chrono::milliseconds(50);
constexpr auto kBetweenNotices = std::chrono::seconds(10);

/// Limits the texts of many short attempts, each of which would begin with its own text.
LogSink rate_limited(const LogSink& log) {
  auto next = std::make_shared<TimePoint>();  // shared: a LogSink is copied
  return [log, next](const std::string& text) {
    if (Clock::now() < *next) return;
    *next = Clock::now() + kBetweenNotices;
    log(text);
  };
}

}  // namespace

Session::Session(const ClientOptions& options, Identity& identity, const ModelMemory& memory, RunFailure& failure,
                 Telemetry& telemetry, PathManager& paths, std::shared_ptr<ps::ControlDialer> dialer)
    : options_(options),
      identity_(identity),
      memory_(memory),
      failure_(failure),
      telemetry_(telemetry),
      paths_(paths),
      dialer_(std::move(dialer)) {
  const auto count = static_cast<uint32_t>(options.cluster.ps.size());
  for (uint32_t i = 0; i < count; ++i) {
    servers_.push_back({.serving = {.index = i, .address = options.cluster.ps[i]},
                        .backup = {.index = i + count, .address = has_backups() ? options.recovery.backups[i] : ""}});
  }
}

absl::Status Session::open() {
  for (const auto* addresses : {&options_.cluster.ps, &options_.recovery.backups}) {
    for (const std::string& address : *addresses)
      GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(options_.security, address));
  }
  GRADRAIL_RETURN_IF_ERROR(check_encryption(options_.security));
  GRADRAIL_RETURN_IF_ERROR(heartbeats_.start());
  if (dialer_ != nullptr) return absl::OkStatus();
  GRADRAIL_RETURN_IF_ERROR(check_available_tasks("a worker needs", threads_with_grpc()));
  GRADRAIL_ASSIGN_OR_RETURN(dialer_, control_link_dialer(options_.security, options_.cluster.workers.size()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Session::resolve(uint32_t task_index) const {
  absl::StatusOr<std::string> address = options_.recovery.ps_address(task_index);
  if (address.ok()) GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(options_.security, *address));
  return address;
}

std::unique_ptr<ControlLink> Session::open_control(uint32_t ps_index, Role role, const LogSink& log) {
  const Task& task = role == Role::serving ? servers_[ps_index].serving : servers_[ps_index].backup;
  AddressResolver resolver;
  if (options_.recovery.ps_address) resolver = [this, index = task.index] { return resolve(index); };
  return std::make_unique<ControlLink>(
      ps_index, task.address, dialer_, log, [this] { return asked_to_stop(options_); }, resolver);
}

absl::Status Session::describe(TimePoint deadline) {
  GRADRAIL_CHECK(controls_.empty() && paths_.links().empty());
  uint32_t shard_count = 0;
  processes_.clear();
  found_other_process_ = false;
  for (uint32_t i = 0; i < servers_.size(); ++i) {
    controls_.push_back(nullptr);
    GRADRAIL_ASSIGN_OR_RETURN(const ps::proto::DescribeReply reply, describe_one(i, deadline));
    // All workers of a run must have joined the same processes: the hash is compared by each ps.
    group_ = ps::with_process(group_, reply.process());
    processes_.push_back(reply.process());
    for (uint32_t k = 0; k < reply.shard_count(); ++k) {
      auto link = std::make_unique<ShardLink>();
      link->ps_index = i;
      link->shard_index = shard_count++;
      link->server = controls_[i]->name();
      link->address = controls_[i]->address();
      paths_.set_server(*link, reply);
      paths_.add(std::move(link));
    }
  }
  GRADRAIL_CHECK(processes_.size() == controls_.size());
  return check_one_checkpoint_folder(controls_);
}

/// Queries both addresses of a ps task in turn until one of them serves; the addresses are swapped when the serving
/// task is the backup.
absl::StatusOr<ps::proto::DescribeReply> Session::describe_one(uint32_t ps_index, TimePoint deadline) {
  Server& server = servers_[ps_index];
  const LogSink log = has_backups() ? rate_limited(options_.hooks.log) : options_.hooks.log;
  ps::proto::DescribeRequest request = describe_request();
  while (true) {
    controls_[ps_index] = open_control(ps_index, Role::serving, log);
    const TimePoint soon = has_backups() ? std::min(deadline, Clock::now() + kDescribeDeadline) : deadline;
    absl::StatusOr<ps::proto::DescribeReply> reply = controls_[ps_index]->describe(request, soon);
    if (reply.ok() && reply->replicated() != has_backups()) {
      return absl::FailedPreconditionError(fmt::format(
          "{} was started {} --backup-ps 1, and this worker {}: give it to all tasks of a run, or to none",
          controls_[ps_index]->name(), has_backups() ? "without" : "with", has_backups() ? "with" : "without"));
    }
    if (const bool encrypts = options_.security.encrypt_data; reply.ok() && reply->encrypts_data() != encrypts) {
      return absl::FailedPreconditionError(
          fmt::format("{} was started {} --encrypt-data, and worker {} {}: give it to all tasks of a run, or to none",
                      controls_[ps_index]->name(), encrypts ? "without" : "with", options_.task_index,
                      encrypts ? "with" : "without"));
    }
    // A backup that waits for its primary answers, too, but does not serve.
    const bool serves = reply.ok() && !reply->backup();
    if (serves || (!reply.ok() && (!has_backups() || !absl::IsDeadlineExceeded(reply.status())))) return reply;
    if (Clock::now() >= deadline) {
      return reply.ok() ? absl::DeadlineExceededError(fmt::format(
                              "{} is a backup, and its primary did not come up in time", controls_[ps_index]->name()))
                        : reply;
    }
    request.set_lost_primary(!reply.ok());
    if (reply.ok()) std::this_thread::sleep_for(kBetweenJoins);
    if (has_backups()) std::swap(server.serving, server.backup);
  }
}

ps::proto::DescribeRequest Session::describe_request() const {
  ps::proto::DescribeRequest request;
  request.set_protocol_version(ps::kProtocolVersion);
  request.set_task_index(options_.task_index);
  request.set_encrypts_data(options_.security.encrypt_data);
  return request;
}

ps::proto::JoinRequest Session::join_request(uint32_t first_shard) const {
  ps::proto::JoinRequest request;
  request.set_protocol_version(ps::kProtocolVersion);
  *request.mutable_member() = identity_.member();
  const auto& names = options_.cluster.workers;
  request.set_worker_name(options_.task_index < names.size() ? names[options_.task_index]
                                                             : "not in the cluster specification");
  ps::to_proto(memory_.schema(), request);
  Mode mode = options_.mode;
  mode.worker_count = static_cast<uint32_t>(names.size());
  *request.mutable_training() = ps::to_proto({.mode = mode,
                                              .optimizer = options_.optimizer,
                                              .push = options_.compression.push,
                                              .returns = options_.compression.returns,
                                              .bucket_bytes = options_.bucket_bytes,
                                              .agreement = options_.agreement});
  request.set_first_shard(first_shard);
  request.set_total_shards(static_cast<uint32_t>(paths_.links().size()));
  request.set_group(group_);
  request.set_run(run_);
  request.set_newcomer(!has_started_);
  if (!sums()) request.set_left_incarnation(left_incarnation_);
  if (origin_group_.has_value()) {
    request.set_left_group(*origin_group_);
    request.set_run_base(run_base_);
    request.set_position(origin_position_);
  }
  return request;
}

absl::StatusOr<std::vector<uint64_t>> Session::join(TimePoint deadline, bool again) {
  GRADRAIL_CHECK(joined_count_ == 0);
  if (again) deadline = std::min(deadline, Clock::now() + kJoinAgainDeadline);
  size_t next_link = 0;
  // The smallest step of each fragment counts: no bucket waits for a step that this worker has skipped.
  std::vector<uint64_t> first_steps(memory_.layout().fragments.size(), UINT64_MAX);
  std::optional<ps::proto::BeganFrom> began_from;  // the first task decides for all
  for (uint32_t i = 0; i < controls_.size(); ++i) {
    ps::proto::JoinRequest request = join_request(static_cast<uint32_t>(next_link));
    // Another process has another group: workers that joined it would wait for this one.
    request.set_process(processes_[i]);
    if (began_from.has_value()) *request.mutable_begin_from() = *began_from;
    absl::StatusOr<ps::proto::JoinReply> joined = controls_[i]->join(request, deadline);
    // The first tasks wait for this worker already. A second search costs it no membership.
    if (absl::IsUnavailable(joined.status()) && has_backups()) {
      const absl::Status found = find_successor(i, deadline);
      // A search without a result leaves the loss as the error; a stop or a refusal is a separate error.
      const bool is_other = !absl::IsUnavailable(found) && !absl::IsDeadlineExceeded(found);
      if (!found.ok() && is_other) return found;
      if (found.ok()) joined = controls_[i]->join(request, deadline);
    }
    if (!joined.ok()) return joined.status();
    const ps::proto::JoinReply& reply = *joined;
    if (!began_from.has_value()) began_from = reply.began_from();
    began_from_ = began_from->has_global_step() ? std::optional<uint64_t>(began_from->global_step()) : std::nullopt;
    if (i == 0) {
      chief_ = reply.chief();
      run_base_heard_ = run_base_followed_ = run_base_ = reply.base_step();
      run_ = reply.run();
      telemetry_.begin_dump_count(reply.dumps());
    }
    // The ps counts this worker as a member from its reply on, and would expire one that does not ping.
    start_heartbeat(i);
    // One uninitialized ps is enough: the chief then offers values to all of them.
    initialised_ = initialised_ && reply.initialised();
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> named, first_steps_in(reply, i));
    for (size_t fragment = 0; fragment < first_steps.size(); ++fragment)
      first_steps[fragment] = std::min(first_steps[fragment], named[fragment]);
    // The first attempt that a task accepts replaces the incarnation there: later replies do not have it.
    if (reply.left_steps_size() > 0)
      left_steps_ = std::min(left_steps_.value_or(UINT64_MAX), uint64_t{reply.left_steps(0)});
    ++joined_count_;
    saves_checkpoints_ = saves_checkpoints_ && reply.saves_checkpoints();
    GRADRAIL_RETURN_IF_ERROR(take_shards(i, reply, next_link));
  }
  GRADRAIL_CHECK(joined_count_ == controls_.size());
  return first_steps;
}

absl::StatusOr<std::vector<uint64_t>> Session::first_steps_in(const ps::proto::JoinReply& reply,
                                                              uint32_t ps_index) const {
  const size_t fragment_count = memory_.layout().fragments.size();
  if (static_cast<size_t>(reply.first_steps_size()) != fragment_count)
    return absl::InternalError(
        fmt::format("{}: its reply to the join has the steps of {} fragments, and the model has {}",
                    controls_[ps_index]->name(), reply.first_steps_size(), fragment_count));
  return std::vector<uint64_t>(reply.first_steps().begin(), reply.first_steps().end());
}

/// Finds the task that continues for a process that was lost between its description and the join.
/// Errors  UNAVAILABLE: another process serves there, so that this worker has to join all tasks again.
absl::Status Session::find_successor(uint32_t ps_index, TimePoint deadline) {
  deadline = std::min(deadline, Clock::now() + options_.recovery.rejoin_timeout);
  GRADRAIL_ASSIGN_OR_RETURN(const ps::proto::DescribeReply reply, describe_one(ps_index, deadline));
  found_other_process_ = reply.process() != processes_[ps_index];
  if (found_other_process_)
    return absl::UnavailableError(fmt::format("{} was started again", controls_[ps_index]->name()));
  for (const auto& link : paths_.links()) {
    if (link->ps_index != ps_index) continue;
    link->server = controls_[ps_index]->name();
    link->address = controls_[ps_index]->address();
    paths_.set_server(*link, reply);
  }
  return absl::OkStatus();
}

absl::Status Session::take_shards(uint32_t ps_index, const ps::proto::JoinReply& reply, size_t& next_link) {
  for (const auto& shard : reply.shards()) {
    // The number of shards was described by the process before the restart.
    if (next_link == paths_.links().size())
      return absl::UnavailableError(
          fmt::format("{} has more shards than it reported: it has just restarted", controls_[ps_index]->name()));
    ShardLink& link = *paths_.links()[next_link++];
    link.token = reply.token();
    set_endpoints(link, shard);
  }
  return absl::OkStatus();
}

void Session::start_heartbeat(uint32_t ps_index) {
  GRADRAIL_CHECK(ps_index < controls_.size() && controls_[ps_index] != nullptr);
  ControlLink& control = *controls_[ps_index];
  control.fill_pings([this, ps_index](ps::proto::Ping& ping) {
    telemetry_.report(ping);
    if (ps_index != 0) tell_losses(ping);
  });
  control.start_heartbeat(
      heartbeats_, identity_.member(),
      [this, ps_index](absl::Status cause) { failure_.lose_server(ps_index, std::move(cause)); },
      [this, ps_index](const ps::proto::HeartbeatReply& news) {
        // ps task 0 names the chief. Every ps task receives a request for dumps: one of them is enough.
        if (ps_index != 0) return;
        // A new chief may be this worker, in a pull that only its own initial values can end.
        if (chief_.exchange(news.chief()) != news.chief()) paths_.wake();
        run_base_heard_ = news.run_base();
        run_ = news.run();
        if (telemetry_.on_dump_count(news.dumps())) paths_.wake();
        auto copy = std::make_shared<const ps::proto::HeartbeatReply>(news);
        const MutexLock lock(news_mutex_);
        news_ = std::move(copy);
      });
}

void Session::ask_for_chief() {
  const absl::StatusOr<ps::proto::StatsReply> stats = controls_[0]->stats();
  if (stats.ok()) chief_ = stats->chief();
}

void Session::forget_news() {
  const MutexLock lock(news_mutex_);
  news_ = nullptr;
}

void Session::tell_losses(ps::proto::Ping& ping) {
  const MutexLock lock(news_mutex_);
  if (news_ != nullptr) *ping.mutable_lost() = news_->lost();
}

void Session::follow_run_base() {
  // Only a changed value counts: Rejoin may have set another base since the value arrived.
  if (const int64_t heard = run_base_heard_; sums() && heard != run_base_followed_) {
    run_base_ = run_base_followed_ = heard;
  }
}

void Session::switch_to(uint32_t ps_index, std::unique_ptr<ControlLink> control, const ps::proto::JoinReply& joined,
                        bool is_at_backup_address) {
  GRADRAIL_CHECK(has_backups() && ps_index < controls_.size());
  save_.emplace(controls_);  // waits for its thread, which uses the removed link; the save under way is abandoned
  controls_[ps_index] = std::move(control);
  if (is_at_backup_address) std::swap(servers_[ps_index].serving, servers_[ps_index].backup);
  if (ps_index == 0) {
    telemetry_.begin_dump_count(joined.dumps());
    forget_news();
  }
  start_heartbeat(ps_index);
}

void Session::begin_return() {
  left_incarnation_ = identity_.incarnation();
  left_steps_.reset();
}

void Session::release() {
  // A ps that is not lost receives the notice that the worker returns: sync does not end the run.
  for (size_t i = 0; i < joined_count_; ++i) controls_[i]->leave_to_return(identity_.member());
  stop_heartbeats();
  save_.emplace(controls_);  // waits for its thread, which uses them
  controls_.clear();
  joined_count_ = 0;
  forget_news();
  // The origin is the last group that has accepted this worker; after an attempt that failed there is none to leave.
  if (group_ != 0) origin_group_ = group_;
  group_ = 0;
  identity_.renew();
  initialised_ = saves_checkpoints_ = true;
}

absl::Status Session::finish_steps() {
  steps_finished_ = true;
  for (const auto& control : controls_) GRADRAIL_RETURN_IF_ERROR(control->finish_steps(identity_.member()));
  return absl::OkStatus();
}

void Session::stop_heartbeats() {
  for (const auto& control : controls_) {
    if (control != nullptr) control->stop_heartbeat();
  }
}

}  // namespace gradrail::worker
