// The calls of ControlService between a ps task and its standby, and how the standby goes on for it.
#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/call_proof.h"
#include "ps/control_service.h"
#include "ps/control_status.h"
#include "spdlog/spdlog.h"
#include "transport/registry.h"

namespace gradrail::ps {
namespace {

/// Workers come when their step is done. Less than --rejoin_secs, within which whoever cannot come needs the primary.
constexpr auto kKeeps = std::chrono::seconds(25);
constexpr auto kKeepsAtLeast = std::chrono::seconds(10);

}  // namespace

absl::Status ControlService::start_mirroring() {
  if (options_.partner.empty()) return absl::OkStatus();
  GRADRAIL_RETURN_IF_ERROR(check_exposure(options_.security, options_.partner));
  auto credentials = channel_credentials(options_.security);
  if (!credentials.ok()) return credentials.status();
  partner_ = std::make_unique<ReplicaLink>(
      ReplicaLink::Options{.credentials = *std::move(credentials),
                           .secret = options_.security.secret,
                           .address = options_.partner,
                           .transports = options_.transports,
                           .silence_limit = options_.silence_limit,
                           .mirrored = [this] { return mirrored(); },
                           .replaced = [this] { be_replaced(); },
                           .refused = [this](const absl::Status& why) { be_refused(why); },
                           .console = options_.console},
      shards_);
  if (!stands_by_) partner_->start();
  return absl::OkStatus();
}

/// The partner goes on with the run. Whoever has begun nothing becomes its standby; what another has is of no use.
void ControlService::be_replaced() {
  {
    std::lock_guard lock(mutex_);
    if (stands_by_) return;
    stands_by_ = set_up_by_.generation() == 0;
    primary_heard_ = Clock::now();
  }
  if (!stands_by_) {
    was_replaced_ = true;  // before anybody hears that the run is over here: elsewhere it goes on
    return report_failure(
        fmt::format("the standby at {} has taken over for this ps task, which was cut off from its workers; started "
                    "again, this one stands by",
                    options_.partner));
  }
  if (options_.console) {
    options_.console(fmt::format("{} has taken over; this one is its standby", partner_name()));
  }
}

/// Before anything has begun: the run is not what it was meant to be. Later it goes on without a standby.
void ControlService::be_refused(const absl::Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (set_up_by_.generation() > 0) return;
  }
  misconfigured_ = true;
  report_failure(fmt::format("the standby at {}: {}", options_.partner, message_of(why)));
}

absl::Status ControlService::no_partner() {
  return absl::FailedPreconditionError("this ps task was started without --replicas 1: give it to all tasks of a run");
}

/// In a local cluster, where a port is chosen when its task starts, nobody starts it again.
bool ControlService::partner_can_return() const { return !absl::EndsWith(options_.partner, ":0"); }

std::string ControlService::partner_name() const {
  return partner_can_return() ? fmt::format("the ps task at {}", options_.partner) : "its ps task";
}

absl::Status ControlService::still_stands_by() const {
  return absl::UnavailableError(fmt::format("this is the standby of {}, which lives", partner_name()));
}

absl::Status ControlService::still_serves() const {
  if (was_replaced_) return absl::UnavailableError("its standby has taken over");
  if (partner_ == nullptr || stands_by_ || term_ > 0 || partner_->has_asked()) return absl::OkStatus();
  // Started again too late, it would begin another run beside the one that its standby goes on with.
  return absl::UnavailableError("it asks its standby first whether that has taken over");
}

void ControlService::describe_shards(google::protobuf::RepeatedPtrField<proto::JoinReply::Shard>& shards) const {
  for (const auto& shard : shards_) {
    proto::JoinReply::Shard* described = shards.Add();
    for (const Shard::Endpoint& endpoint : shard->endpoints()) {
      if (!endpoint.refused.empty()) continue;
      proto::JoinReply::Endpoint* message = described->add_endpoints();
      message->set_transport(endpoint.transport);
      message->set_address(endpoint.address);
    }
  }
}

void ControlService::report_replica(const std::string& cause) {
  if (partner_ != nullptr) partner_->shard_says(cause);
}

void ControlService::end_mirroring() {
  if (partner_ != nullptr) partner_->end();
}

void ControlService::stop_mirroring() {
  if (partner_ != nullptr) partner_->stop();
}

proto::MirrorRequest ControlService::mirrored() {
  std::lock_guard lock(mutex_);
  proto::MirrorRequest request = set_up_by_;
  request.set_protocol_version(kProtocolVersion);
  request.set_process(process_);
  request.set_term(term_);
  request.set_shards(static_cast<uint32_t>(shards_.size()));
  request.set_checkpoint_folder(checkpoint_folder_);
  for (const Coordinator::Known& known : coordinator_.everybody()) {
    proto::MirrorRequest::Worker& worker = *request.add_workers();
    worker.mutable_member()->set_task_index(known.worker);
    worker.mutable_member()->set_incarnation(known.incarnation);
    worker.set_name(known.name);
    worker.set_gone(known.gone);
  }
  request.set_over(coordinator_.finished());
  request.set_aborted(coordinator_.aborted());
  return request;
}

grpc::Status ControlService::Mirror(grpc::ServerContext*, const proto::MirrorRequest* request,
                                    proto::MirrorReply* reply) {
  if (request->protocol_version() != kProtocolVersion) {
    return to_grpc(absl::FailedPreconditionError("another protocol version: install the same gradrail on all hosts"));
  }
  if (partner_ == nullptr) return to_grpc(no_partner());
  std::lock_guard setup_lock(setup_mutex_);
  reply->set_process(process_);
  if (!stands_by_ && request->term() < term_) {
    reply->set_taken_over(true);
    return grpc::Status::OK;
  }
  if (!stands_by_ && request->term() > term_) be_replaced();
  if (!stands_by_) {
    return to_grpc(absl::UnavailableError("this ps task serves itself"));
  }
  if (const absl::Status alike = check_alike(*request); !alike.ok()) return to_grpc(alike);
  return to_grpc(take_mirrored(*request, *reply));
}

absl::Status ControlService::check_alike(const proto::MirrorRequest& request) const {
  if (request.shards() != shards_.size()) {
    return absl::FailedPreconditionError(
        fmt::format("it has {} shards, the ps task that it is to stand by for has {}: give both the same --shards",
                    shards_.size(), request.shards()));
  }
  if (request.checkpoint_folder() != checkpoint_folder_) {
    const char* what = checkpoint_folder_.empty()            ? "it has no checkpoint folder, and the other has one"
                       : request.checkpoint_folder().empty() ? "it has a checkpoint folder, and the other has none"
                                                             : "it has another checkpoint folder";
    return absl::FailedPreconditionError(
        fmt::format("{}: give all ps tasks one shared --checkpoint_dir, or none", what));
  }
  return absl::OkStatus();
}

/// The primary was started again, and its workers are about to come here, from the step that they are at.
bool ControlService::keeps_for_workers(const proto::MirrorRequest& request) {
  if (request.process() == primary_.process() || primary_.generation() == 0) return false;
  primary_is_gone_ = true;
  {
    std::lock_guard lock(mutex_);
    if (Clock::now() - primary_heard_ > std::clamp<Duration>(options_.away_limit / 3, kKeepsAtLeast, kKeeps))
      return false;
  }
  const auto& workers = primary_.workers();
  if (std::none_of(workers.begin(), workers.end(), [](const auto& worker) { return worker.gone().empty(); }))
    return false;
  return std::all_of(shards_.begin(), shards_.end(),
                     [](const auto& shard) { return shard->may_take_over({}, true).ok(); });
}

absl::Status ControlService::take_mirrored(const proto::MirrorRequest& request, proto::MirrorReply& reply) {
  if (keeps_for_workers(request)) {
    reply.set_keeps(true);
    return absl::OkStatus();
  }
  if (request.process() == primary_.process() && request.number() < primary_.number())
    return absl::UnavailableError("a later message was here before this one");
  const bool other = request.process() != primary_.process() || request.generation() != primary_.generation();
  if (other && request.generation() > 0) {
    agreed_.reset();
    began_from_.Clear();
    primary_.set_generation(0);  // whatever happens now, this is not what it was
    GRADRAIL_RETURN_IF_ERROR(agree(request.agreed()));
    began_from_ = request.began_from();
    std::lock_guard lock(mutex_);
    *set_up_by_.mutable_began_from() = began_from_;
  }
  if ((other || request.anew()) && request.generation() > 0) {
    primary_token_ = new_token();
    for (const auto& shard : shards_)
      GRADRAIL_RETURN_IF_ERROR(shard->expect_primary(data_key(options_.security.secret, primary_token_)));
  }
  if (agreed_.has_value() && request.generation() > 0 && agreed_->run_base != request.run_base()) {
    agreed_->run_base = request.run_base();
    std::lock_guard lock(mutex_);
    set_up_by_.set_run_base(request.run_base());
  }
  primary_ = request;
  primary_is_gone_ = false;
  {
    std::lock_guard lock(mutex_);
    primary_heard_ = Clock::now();
    primary_is_over_ = request.over();
    if (request.over() && !request.aborted().empty()) coordinator_.give_up(request.aborted());
  }
  losses_changed_.notify_all();
  reply.set_token(primary_token_);
  reply.set_host_id(transport::host_id());
  describe_shards(*reply.mutable_shards());
  return absl::OkStatus();
}

/// A worker has lost the primary. Nothing that it may have shown to anybody is missing here, or this is refused.
absl::Status ControlService::take_over(const proto::JoinRequest& request) {
  if (partner_ == nullptr) return no_partner();
  if (!request.has_take_over()) return still_stands_by();
  const std::string whose = fmt::format("standby of {}", partner_name());
  if (!agreed_.has_value() || (stands_by_ && primary_.generation() == 0)) {
    return absl::FailedPreconditionError(fmt::format("the {} has heard nothing from it yet", whose));
  }
  bool cut = primary_is_gone_;
  {
    std::lock_guard lock(mutex_);
    cut = cut || Clock::now() - primary_heard_ > options_.silence_limit;
  }
  auto seen = request.take_over().versions().begin();
  for (const auto& shard : shards_) {
    const size_t count = agreed_->map.bucket_count(agreed_->first_shard + static_cast<uint32_t>(&shard - &shards_[0]));
    std::vector<uint64_t> versions;
    while (versions.size() < count && seen != request.take_over().versions().end()) versions.push_back(*seen++);
    if (const absl::Status may = shard->may_take_over(versions, cut); !may.ok()) {
      return absl::Status(may.code(), fmt::format("the {} cannot go on for it: {}", whose, message_of(may)));
    }
  }
  if (!stands_by_) return absl::OkStatus();
  std::vector<Coordinator::Known> everybody;
  std::vector<Shard::Successor> members;
  for (const proto::MirrorRequest::Worker& worker : primary_.workers()) {
    const proto::Member& member = worker.member();
    everybody.push_back({member.task_index(), member.incarnation(), worker.name(), worker.gone()});
    members.push_back({member.task_index(), member.incarnation(), worker.gone().empty()});
  }
  for (const auto& shard : shards_) GRADRAIL_RETURN_IF_ERROR(shard->take_over(members));
  const bool initialised = has_values();
  {
    std::lock_guard lock(mutex_);
    coordinator_.restore(everybody, Clock::now());
    if (initialised) coordinator_.has_parameters(Clock::now());
  }
  process_ = primary_.process();  // the group of the run stays what it was
  term_ = primary_.term() + 1;
  stands_by_ = false;
  if (partner_can_return()) partner_->start();
  spdlog::warn("took over from {}, which was lost", partner_name());
  return absl::OkStatus();
}

void ControlService::resume(const proto::JoinRequest& request) {
  const proto::Member& member = request.member();
  {
    std::lock_guard lock(mutex_);
    for (const proto::JoinRequest::TakeOver::Barrier& barrier : request.take_over().barriers()) {
      coordinator_.enter_barrier(barrier.name(), barrier.generation(), true, member.task_index(), member.incarnation());
    }
  }
  changed_.notify_all();
  if (!request.take_over().steps_are_done()) return;
  for (const auto& shard : shards_) shard->excuse(member.task_index(), member.incarnation());
}

/// A standby whose primary has gone without a word, and whom nobody asks to take over, or nobody can ask.
std::string ControlService::why_deserted() {
  Duration silent{};
  {
    std::lock_guard lock(mutex_);
    if (!stands_by_ || primary_heard_ == TimePoint() || primary_is_over_) return "";
    silent = Clock::now() - primary_heard_;
  }
  if (silent > options_.away_limit) {
    return fmt::format("{} was lost, and no worker has asked its standby to take over", partner_name());
  }
  if (options_.begins_as_standby || silent < options_.silence_limit) return "";
  // Both would stand by for each other. Started again, this one serves.
  for (const auto& shard : shards_) {
    if (shard->may_take_over({}, true).ok()) continue;
    return fmt::format("{} was lost before its standby had everything", partner_name());
  }
  return "";
}

}  // namespace gradrail::ps
