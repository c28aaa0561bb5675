#include "ps/control_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/call_proof.h"
#include "ps/checkpoint_folder.h"
#include "ps/cluster_spec.h"
#include "ps/control_status.h"
#include "spdlog/spdlog.h"
#include "transport/registry.h"

namespace gradrail::ps {
namespace {

/// More than any cluster has; what a stranger says must not decide how much memory is asked for.
constexpr uint32_t kMaxShards = 1 << 16;
/// A Barrier call answers at the latest after this, so that it holds a server thread for a bounded time.
constexpr auto kJoinTakes = std::chrono::seconds(10);  // at most, where shards copy or the standby is slow
constexpr uint32_t kLongestPatienceMs = 10'000;
/// Between two rounds of housekeeping, beyond what they wait.
constexpr auto kMayStandStill = std::chrono::seconds(1);

absl::Status check_version(uint32_t theirs) {
  if (theirs == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "protocol version {} here, {} there: install the same gradrail on all hosts", kProtocolVersion, theirs));
}

}  // namespace

ControlService::ControlService(Server::Options options, std::string checkpoint_folder,
                               std::vector<std::unique_ptr<Shard>>& shards)
    : options_(std::move(options)),
      checkpoint_folder_(std::move(checkpoint_folder)),
      process_(random_bits()),
      shards_(shards),
      writer_(options_.checkpoint_dir),
      stands_by_(options_.begins_as_standby),
      coordinator_({.worker_names = options_.worker_names,
                    .silence_limit = options_.silence_limit,
                    .min_workers = options_.min_workers,
                    .return_limit = options_.return_limit,
                    .away_limit = options_.away_limit}) {}

grpc::Status ControlService::Describe(grpc::ServerContext*, const proto::DescribeRequest* request,
                                      proto::DescribeReply* reply) {
  reply->set_protocol_version(kProtocolVersion);
  if (const absl::Status same = check_version(request->protocol_version()); !same.ok()) return to_grpc(same);
  reply->set_shard_count(static_cast<uint32_t>(shards_.size()));
  reply->set_host_id(transport::host_id());
  reply->set_checkpoint_folder(checkpoint_folder_);
  reply->set_on_gpu(options_.device != "host");
  reply->set_process(process_);
  reply->set_paired(partner_ != nullptr);
  reply->set_silence_limit_ms(static_cast<uint32_t>(options_.silence_limit / std::chrono::milliseconds(1)));
  reply->set_standby(stands_by_ || !still_serves().ok());
  for (const Shard::Endpoint& endpoint : shards_[0]->endpoints()) {
    proto::DescribeReply::Transport* transport = reply->add_transports();
    transport->set_name(endpoint.transport);
    transport->set_refused(endpoint.refused);
  }
  return grpc::Status::OK;
}

grpc::Status ControlService::Join(grpc::ServerContext*, const proto::JoinRequest* request, proto::JoinReply* reply) {
  absl::Status joined = join(*request, *reply);
  if (joined.ok() && partner_ != nullptr) {
    partner_->settle();  // else nobody there would wait for it
    joined = still_serves();
  }
  if (!joined.ok()) {
    std::lock_guard lock(mutex_);
    // It tries again while its predecessor is not known to be gone: one line is enough.
    if (std::exchange(refused_incarnation_, request->member().incarnation()) == request->member().incarnation()) {
      return to_grpc(joined);
    }
    spdlog::warn("worker {} ({}) was not admitted: {}", request->member().task_index(), request->worker_name(),
                 std::string(message_of(joined)));
  }
  return to_grpc(joined);
}

absl::Status ControlService::join(const proto::JoinRequest& request, proto::JoinReply& reply) {
  GRADRAIL_RETURN_IF_ERROR(check_version(request.protocol_version()));
  GRADRAIL_RETURN_IF_ERROR(still_serves());
  // The group that it names has another process in this one's place: nobody else would ever find the same.
  if (request.process() != 0 && request.process() != process_)
    return absl::UnavailableError("it was started again since this worker has looked for it");
  std::lock_guard setup_lock(setup_mutex_);
  if (stands_by_ || request.has_take_over()) GRADRAIL_RETURN_IF_ERROR(take_over(request));
  GRADRAIL_RETURN_IF_ERROR(agree(request));
  // A partner that answers late may have made this task its standby meanwhile.
  if (stands_by_) return still_stands_by();
  const absl::StatusOr<std::string> token = admit(request);
  if (!token.ok()) return token.status();
  if (request.has_take_over()) resume(request);
  bool initialised = true;
  uint64_t next_step = UINT64_MAX;
  for (const auto& shard : shards_) {
    const absl::StatusOr<Shard::Stats> stats = shard->stats();
    if (!stats.ok()) return stats.status();
    initialised = initialised && stats->initialised;
    next_step = std::min(next_step, stats->next_step);
    reply.set_global_step(std::max<uint64_t>(reply.global_step(), stats->version));
  }
  reply.set_initialised(initialised);
  reply.set_first_step(agreed_->training.mode.waits() ? next_step : 1);
  reply.set_base_step(agreed_->run_base);
  {
    std::lock_guard lock(mutex_);
    reply.set_chief(coordinator_.chief());
  }
  reply.set_token(*token);
  reply.set_saves_checkpoints(!options_.checkpoint_dir.empty());
  *reply.mutable_began_from() = began_from_;
  describe_shards(*reply.mutable_shards());
  return absl::OkStatus();
}

absl::Status ControlService::agree(const proto::JoinRequest& request) {
  const Schema schema = schema_from_proto(request);
  GRADRAIL_RETURN_IF_ERROR(validate(schema));
  const absl::StatusOr<Training> training = from_proto(request.training());
  if (!training.ok()) return training.status();
  // Shards keep a place for every index up to the highest.
  if (request.member().task_index() >= kMaxWorkers) {
    return absl::InvalidArgumentError(
        fmt::format("worker {} cannot join: there may be {} workers", request.member().task_index(), kMaxWorkers));
  }
  if (agreed_.has_value()) {
    GRADRAIL_RETURN_IF_ERROR(compare(request, schema, *training));
    GRADRAIL_RETURN_IF_ERROR(check_group(request));
  }
  return agreed_.has_value() ? absl::OkStatus() : set_up(request, schema, *training);
}

absl::Status ControlService::compare(const proto::JoinRequest& request, const Schema& schema,
                                     const Training& training) const {
  if (const std::string differs = difference(agreed_->schema, schema); !differs.empty()) {
    return absl::FailedPreconditionError(fmt::format("schema mismatch: {}", differs));
  }
  if (const std::string differs = difference(agreed_->training, training); !differs.empty()) {
    return absl::FailedPreconditionError(fmt::format("training options differ from the first worker's: {}", differs));
  }
  if (request.first_shard() != agreed_->first_shard || request.total_shards() != agreed_->map.shard_count()) {
    return absl::FailedPreconditionError(
        fmt::format("this ps task holds shards {}.. of {} here, {}.. of {} there: are the ps_hosts lists the same?",
                    agreed_->first_shard, agreed_->map.shard_count(), request.first_shard(), request.total_shards()));
  }
  return absl::OkStatus();
}

absl::Status ControlService::set_up(const proto::JoinRequest& request, const Schema& schema, const Training& training) {
  if (request.total_shards() > kMaxShards) {
    return absl::InvalidArgumentError(
        fmt::format("join: {} shards are more than {}", request.total_shards(), kMaxShards));
  }
  uint64_t elements = 0;
  for (const Tensor& tensor : schema) elements += tensor.elements();
  absl::StatusOr<ShardMap> map = ShardMap::cut(elements, request.total_shards(), training.bucket_bytes);
  if (!map.ok()) return map.status();
  if (request.first_shard() + shards_.size() > map->shard_count()) {
    return absl::InvalidArgumentError("join: first shard lies beyond the number of shards");
  }
  const absl::StatusOr<std::shared_ptr<const ps::Checkpoint>> restored = restore(request, schema, training);
  if (!restored.ok()) return restored.status();
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    GRADRAIL_RETURN_IF_ERROR(shards_[i]->set_up({.shard_index = request.first_shard() + i,
                                                 .map = *map,
                                                 .mode = training.mode,
                                                 .optimizer = training.optimizer,
                                                 .restored = *restored}));
  }
  if (*restored != nullptr) {
    began_from_.set_global_step((*restored)->header.global_step);
    began_from_.set_saved_us((*restored)->header.saved_us);
  }
  agreed_ = {.schema = schema,
             .training = training,
             .map = *std::move(map),
             .first_shard = request.first_shard(),
             .group = request.group(),
             .newcomer = request.has_left_group() ? std::nullopt : std::optional(request.member().task_index()),
             .run_base = base_of(request, training.mode)};
  std::unique_lock lock(mutex_);
  if (*restored != nullptr) coordinator_.has_parameters(Clock::now());
  const std::vector<WorkerIndex> gone = coordinator_.gone();
  lock.unlock();
  for (const auto& shard : shards_) shard->forgo(gone);
  lock.lock();
  set_up_by_.set_generation(set_up_by_.generation() + 1);
  *set_up_by_.mutable_agreed() = request;
  set_up_by_.set_run_base(agreed_->run_base);
  *set_up_by_.mutable_began_from() = began_from_;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ps::Checkpoint>> ControlService::restore(const proto::JoinRequest& request,
                                                                              const Schema& schema,
                                                                              const Training& training) {
  if (stands_by_) return nullptr;  // its primary sends what there is
  const std::string& folder = options_.checkpoint_dir;
  const proto::BeganFrom& others = request.begin_from();
  if (folder.empty() || (request.has_begin_from() && !others.has_global_step())) return nullptr;
  absl::StatusOr<std::shared_ptr<const ps::Checkpoint>> restored =
      request.has_begin_from()
          ? restore_set(folder, {others.global_step(), others.saved_us()}, schema, training.optimizer.kind)
          : restore_newest(folder, schema, training.optimizer.kind);
  if (!restored.ok() && request.has_left_group() && !request.has_begin_from()) {
    // A run that lives has its parameters: those of the chief are better than an end.
    spdlog::warn("nothing is restored: {}", std::string(message_of(restored.status())));
    return nullptr;
  }
  if (restored.ok() && *restored != nullptr && options_.console) {
    options_.console(
        fmt::format("restored global step {} from {}", (*restored)->header.global_step, options_.checkpoint_dir));
  }
  return restored;
}

absl::StatusOr<std::string> ControlService::admit(const proto::JoinRequest& request) {
  const proto::Member& member = request.member();
  {
    std::lock_guard lock(mutex_);
    if (request.has_left_group() && request.left_group() != request.group()) coordinator_.goes_on(Clock::now());
    // It has no heartbeat before it is answered.
    GRADRAIL_RETURN_IF_ERROR(
        coordinator_.join(member.task_index(), member.incarnation(), request.worker_name(), Clock::now() + kJoinTakes));
  }
  changed_.notify_all();
  std::string token = new_token();
  const std::string key = data_key(options_.security.secret, token);
  for (const auto& shard : shards_) {
    GRADRAIL_RETURN_IF_ERROR(shard->admit(member.task_index(), member.incarnation(), key));
  }
  {
    std::unique_lock lock(mutex_);
    const absl::Status live = coordinator_.heard(member.task_index(), member.incarnation(), Clock::now() + kJoinTakes);
    lock.unlock();
    if (!live.ok()) {  // declared lost while a shard was busy, which may have heard of that first
      for (const auto& shard : shards_) shard->dismiss(member.task_index(), member.incarnation());
      return absl::UnavailableError(std::string(message_of(live)));
    }
  }
  return token;
}

grpc::Status ControlService::Barrier(grpc::ServerContext* context, const proto::BarrierRequest* request,
                                     proto::BarrierReply* reply) {
  const proto::Member& member = request->member();
  const auto deadline = Clock::now() + std::chrono::milliseconds(std::min(request->patience_ms(), kLongestPatienceMs));
  std::unique_lock lock(mutex_);
  if (const absl::Status live = coordinator_.heard(member.task_index(), member.incarnation(), Clock::now());
      !live.ok()) {
    return to_grpc(live);
  }
  bool others_know = false;
  while (true) {
    if (const absl::Status serves = still_serves(); !serves.ok()) return to_grpc(serves);
    if (!coordinator_.aborted().empty()) return to_grpc(absl::AbortedError(coordinator_.aborted()));
    reply->set_complete(coordinator_.enter_barrier(request->name(), request->generation(), request->live_only(),
                                                   member.task_index(), member.incarnation()));
    if (reply->complete() || Clock::now() >= deadline || context->IsCancelled()) break;
    if (!std::exchange(others_know, true)) changed_.notify_all();
    changed_.wait_until(lock, std::min(deadline, Clock::now() + std::chrono::milliseconds(500)));
  }
  changed_.notify_all();
  for (std::string& name : coordinator_.barrier_missing(request->name(), request->generation(), request->live_only())) {
    reply->add_missing(std::move(name));
  }
  return grpc::Status::OK;
}

grpc::Status ControlService::Heartbeat(grpc::ServerContext*,
                                       grpc::ServerReaderWriter<proto::Notice, proto::Ping>* stream) {
  proto::Ping ping;
  std::optional<proto::Member> member;
  while (stream->Read(&ping)) {
    member = ping.member();
    if (const absl::Status serves = still_serves(); !serves.ok()) return to_grpc(serves);
    proto::Notice notice;
    {
      std::lock_guard lock(mutex_);
      const absl::Status live = coordinator_.heard(member->task_index(), member->incarnation(), Clock::now());
      notice.set_aborted(coordinator_.aborted());
      notice.set_epoch(coordinator_.epoch());
      notice.set_chief(coordinator_.chief());
      notice.set_run_base(set_up_by_.run_base());
      // Who has said goodbye beats on until it is answered.
      if (!live.ok() && notice.aborted().empty() && !coordinator_.has_left(member->task_index(), member->incarnation()))
        return to_grpc(live);
      if (live.ok() && ping.has_report())
        reports_.heard(member->task_index(), member->incarnation(), ping.report(), Clock::now());
    }
    notice.set_dumps(dumps_asked());
    notice.set_clock_ns(Clock::now().time_since_epoch().count());
    if (!stream->Write(notice)) break;
  }
  // After Leave this finds no live member and changes nothing.
  if (member.has_value()) report_loss(member->task_index(), member->incarnation(), "its control connection ended");
  return grpc::Status::OK;
}

grpc::Status ControlService::Leave(grpc::ServerContext*, const proto::LeaveRequest* request, proto::LeaveReply*) {
  const proto::Member& member = request->member();
  if (request->stays()) {
    for (const auto& shard : shards_) shard->excuse(member.task_index(), member.incarnation());
    return grpc::Status::OK;
  }
  if (request->returns()) {
    {
      std::lock_guard lock(mutex_);
      coordinator_.away(member.task_index(), member.incarnation(), "it looks for a parameter server that it has lost",
                        Clock::now());
    }
    changed_.notify_all();
    for (const auto& shard : shards_) shard->dismiss(member.task_index(), member.incarnation());
    return grpc::Status::OK;
  }
  if (!request->failed().empty()) {
    declare_lost({member.task_index(), member.incarnation(), request->failed()});
    return grpc::Status::OK;
  }
  if (stands_by_) return to_grpc(still_stands_by());  // it means the task that has taken over from this one
  {
    std::lock_guard lock(mutex_);
    coordinator_.leave(member.task_index(), member.incarnation());
    reports_.ended(member.task_index(), member.incarnation(), "left");
  }
  changed_.notify_all();
  for (const auto& shard : shards_) shard->dismiss(member.task_index(), member.incarnation());
  if (partner_ != nullptr) partner_->settle();
  losses_changed_.notify_all();
  return to_grpc(still_serves());
}

void ControlService::report_loss(WorkerIndex worker, uint64_t incarnation, const std::string& cause) {
  {
    std::lock_guard lock(losses_mutex_);
    losses_.push_back({worker, incarnation, cause});
  }
  losses_changed_.notify_all();
}

void ControlService::report_failure(const std::string& cause) {
  {
    std::lock_guard lock(losses_mutex_);
    if (failure_.empty()) failure_ = cause;
  }
  losses_changed_.notify_all();
}

void ControlService::declare_lost(const Loss& loss) {
  bool goes_on = true;
  {
    std::lock_guard lock(mutex_);
    if (!coordinator_.lost(loss.worker, loss.incarnation, loss.cause, Clock::now())) return;
    reports_.ended(loss.worker, loss.incarnation, "lost: " + loss.cause);
    goes_on = coordinator_.aborted().empty();
    spdlog::warn("{} was lost: {}{}", coordinator_.name_of(loss.worker), loss.cause,
                 goes_on ? fmt::format("; {} are left", coordinator_.live_count()) : "");
  }
  changed_.notify_all();
  for (const auto& shard : shards_) {
    goes_on ? shard->dismiss(loss.worker, loss.incarnation) : shard->cut_off(loss.worker, loss.incarnation);
  }
}

void ControlService::housekeep(Duration patience) {
  std::deque<Loss> losses;
  std::string failure;
  {
    std::unique_lock lock(losses_mutex_);
    if (losses_.empty() && failure_.empty()) losses_changed_.wait_for(lock, patience);
    losses.swap(losses_);
    failure.swap(failure_);
  }
  // All of us may have been stopped, with the pings of everybody in our sockets.
  const TimePoint now = Clock::now();
  const Duration still = now - std::exchange(housekept_, now) - patience;
  if (failure.empty()) failure = why_deserted();
  if (!failure.empty()) {
    {
      std::lock_guard lock(mutex_);
      coordinator_.give_up(failure);
    }
    changed_.notify_all();
  }
  for (const Loss& loss : losses) declare_lost(loss);
  std::vector<Coordinator::Member> silent;
  std::vector<WorkerIndex> gone;
  {
    std::lock_guard lock(mutex_);
    if (still > kMayStandStill) coordinator_.stood_still(still);
    silent = coordinator_.silent(now);
    coordinator_.give_up_deserted(now);
    // Of a run that is given up by that no step is applied any more without them.
    if (coordinator_.give_up_missing(now) && coordinator_.aborted().empty()) gone = coordinator_.gone();
  }
  if (!gone.empty()) {
    for (const auto& shard : shards_) shard->forgo(gone);
    changed_.notify_all();
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.silence_limit).count();
  for (const Coordinator::Member& member : silent) {
    declare_lost({member.worker, member.incarnation, fmt::format("no sign of life for {} s", seconds)});
  }
  if (silent.empty()) return;
  std::lock_guard lock(mutex_);
  coordinator_.wait_for_the_silent(now);
}

bool ControlService::finished() {
  std::lock_guard lock(mutex_);
  if (stands_by_) return primary_is_over_ || !coordinator_.aborted().empty();
  return coordinator_.finished();
}

bool ControlService::has_workers() {
  std::lock_guard lock(mutex_);
  return coordinator_.live_count() > 0;
}

std::string ControlService::aborted() {
  std::lock_guard lock(mutex_);
  return coordinator_.aborted();
}

std::vector<std::string> ControlService::never_joined() {
  if (stands_by_) return {};
  std::lock_guard lock(mutex_);
  return coordinator_.never_joined();
}

}  // namespace gradrail::ps
