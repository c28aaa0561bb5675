// Joining: control plane first, then one data connection per shard.
#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/training.h"
#include "spdlog/spdlog.h"
#include "transport/registry.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

constexpr auto kRejoinAttempt = std::chrono::seconds(5);

}  // namespace

Client::Impl::Impl(ClientOptions options, ps::Schema schema)
    : options_(std::move(options)),
      schema_(std::move(schema)),
      incarnation_(random_bits() | 1),  // never 0

      wait_set_(options_.wait) {
  recorder_ = FlightRecorder(options_.marks);
  tensor_first_.push_back(0);
  for (const ps::Tensor& tensor : schema_) tensor_first_.push_back(tensor_first_.back() + tensor.elements());
  if (!options_.notice) options_.notice = [](const std::string& text) { spdlog::warn("{}", text); };
}

Client::Impl::~Impl() {
  if (failure().ok() && !left_) leave().IgnoreError();
  for (const auto& control : controls_) control->stop_heartbeat();
}

absl::Status Client::Impl::join() {
  const TimePoint now = Clock::now();
  const TimePoint deadline = now + std::min(options_.join_timeout, TimePoint::max() - now);
  for (const auto* addresses : {&options_.cluster.ps, &options_.standbys}) {
    for (const std::string& address : *addresses)
      GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(options_.security, address));
  }
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = ps::channel_credentials(options_.security);
  if (!credentials.ok()) return credentials.status();
  credentials_ = *std::move(credentials);
  GRADRAIL_RETURN_IF_ERROR(allocate());
  return join_cluster(deadline);
}

absl::Status Client::Impl::join_cluster(TimePoint deadline) {
  GRADRAIL_RETURN_IF_ERROR(describe_all(deadline));
  GRADRAIL_RETURN_IF_ERROR(check_one_checkpoint_folder(controls_));
  // One of several ps tasks may have been started again since it was described: soon look once more.
  GRADRAIL_RETURN_IF_ERROR(join_all(rejoining_ ? std::min(deadline, Clock::now() + kRejoinAttempt) : deadline));
  GRADRAIL_RETURN_IF_ERROR(connect_all(deadline));
  published_.publish(stats(), Clock::now());
  return failure();
}

absl::Status Client::Impl::connect_all(TimePoint deadline) {
  for (const auto& link : links_) {
    if (link->buckets.empty()) continue;  // more shards than elements: nothing to exchange with this one
    GRADRAIL_RETURN_IF_ERROR(connect(*link, deadline));
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::allocate() {
  const size_t bytes = tensor_first_.back() * sizeof(float);
  absl::StatusOr<SharedMemory> parameters = SharedMemory::create("gradrail-parameters", bytes);
  if (!parameters.ok()) return parameters.status();
  absl::StatusOr<SharedMemory> gradients = SharedMemory::create("gradrail-gradients", bytes);
  if (!gradients.ok()) return gradients.status();
  if (options_.place_memory) {
    options_.place_memory(parameters->span());
    options_.place_memory(gradients->span());
  }
  parameters_ = *std::move(parameters);
  gradients_ = *std::move(gradients);
  return open_gpu();
}

absl::StatusOr<std::string> Client::Impl::address_now(uint32_t ps_index) const {
  absl::StatusOr<std::string> address = options_.ps_address(ps_index);
  if (address.ok()) GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(options_.security, *address));
  return address;
}

absl::Status Client::Impl::describe_all(TimePoint deadline) {
  const std::string host_id = transport::host_id();
  uint32_t shard_count = 0;
  processes_.clear();
  for (uint32_t i = 0; i < options_.cluster.ps.size(); ++i) {
    controls_.push_back(nullptr);
    const absl::StatusOr<ps::proto::DescribeReply> reply = describe(i, deadline);
    if (!reply.ok()) return reply.status();
    group_ = ps::with_process(group_, reply->process());
    processes_.push_back(reply->process());
    a_shard_is_on_gpu_ = a_shard_is_on_gpu_ || reply->on_gpu();
    std::vector<transport::PeerTransport> theirs;
    for (const auto& transport : reply->transports()) theirs.push_back({transport.name(), transport.refused()});
    for (uint32_t k = 0; k < reply->shard_count(); ++k) {
      auto link = std::make_unique<ShardLink>();
      link->ps_index = i;
      link->shard_index = shard_count++;
      link->ipc_refused = why_not_ipc(*reply, host_id == reply->host_id(), controls_[i]->name());
      link->candidates = transport::weigh(options_.transports, theirs, host_id, reply->host_id());
      links_.push_back(std::move(link));
    }
  }
  absl::StatusOr<ps::ShardMap> map = ps::ShardMap::cut(tensor_first_.back(), shard_count, options_.bucket_bytes);
  if (!map.ok()) return map.status();
  map_ = *std::move(map);
  touched_.resize(schema_.size());
  for (const auto& link : links_) {
    link->range = map_.shard(link->shard_index);
    for (uint32_t i = 0; i < map_.bucket_count(link->shard_index); ++i) {
      link->buckets.push_back({.range = map_.bucket(link->shard_index, i)});
    }
    count_tensors(*link);
  }
  return absl::OkStatus();
}

void Client::Impl::count_tensors(ShardLink& link) {
  for (size_t tensor = 0; tensor < schema_.size(); ++tensor) {
    bool touches = false;
    for (ShardLink::Bucket& bucket : link.buckets) {
      if (bucket.range.first >= tensor_first_[tensor + 1]) continue;
      if (bucket.range.first + bucket.range.count <= tensor_first_[tensor]) continue;
      ++bucket.tensors;
      touches = true;
    }
    if (touches) touched_[tensor].push_back(&link);
  }
}

ps::proto::JoinRequest Client::Impl::join_request(uint32_t first_shard) const {
  ps::proto::JoinRequest request;
  request.set_protocol_version(ps::kProtocolVersion);
  *request.mutable_member() = member();
  const auto& names = options_.cluster.workers;
  request.set_worker_name(options_.task_index < names.size() ? names[options_.task_index]
                                                             : "not in the cluster specification");
  ps::to_proto(schema_, request);
  *request.mutable_training() = ps::to_proto({.mode = {.kind = options_.mode,
                                                       .worker_count = static_cast<uint32_t>(names.size()),
                                                       .bound = options_.mode_bound},
                                              .optimizer = options_.optimizer,
                                              .bucket_bytes = options_.bucket_bytes,
                                              .agreement = options_.agreement});
  request.set_first_shard(first_shard);
  request.set_total_shards(map_.shard_count());
  request.set_group(group_);
  if (left_group_.has_value()) {
    request.set_left_group(*left_group_);
    request.set_run_base(base_step_);
    request.set_position(left_position_ - std::min(left_position_, unanswered_));
  }
  return request;
}

void Client::Impl::watch(uint32_t ps_index) {
  ControlLink& control = *controls_[ps_index];
  const bool names_the_chief = ps_index == 0;
  control.fill_pings([this](ps::proto::Ping& ping) { report(ping); });
  control.start_heartbeat(
      member(), [this, ps_index](absl::Status cause) { lose(ps_index, std::move(cause)); },
      [this, names_the_chief](const ps::proto::Notice& notice) {
        if (names_the_chief && chief_.exchange(notice.chief()) != notice.chief()) wait_set_.wake();
        if (names_the_chief) told_base_ = notice.run_base();
        // Whoever asks for dumps asks every ps: one of them is enough to hear it from.
        if (names_the_chief) hear_of_dumps(notice.dumps());
      });
}

absl::Status Client::Impl::join_all(TimePoint deadline) {
  size_t next_link = 0;
  uint64_t first_step = UINT64_MAX;
  std::optional<ps::proto::BeganFrom> began_from;  // the first task decides for all
  for (uint32_t i = 0; i < controls_.size(); ++i) {
    ps::proto::JoinRequest request = join_request(static_cast<uint32_t>(next_link));
    if (rejoining_) request.set_process(processes_[i]);  // who begins looks once, and again when it is started again
    if (began_from.has_value()) *request.mutable_begin_from() = *began_from;
    const absl::StatusOr<ps::proto::JoinReply> reply = controls_[i]->join(request, deadline);
    if (!reply.ok()) return reply.status();
    if (!began_from.has_value()) began_from = reply->began_from();
    began_from_nothing_ = !began_from->has_global_step();
    if (i == 0) {
      chief_ = reply->chief();
      told_base_ = joined_base_ = base_step_ = reply->base_step();
    }
    watch(i);
    initialised_ = initialised_ && reply->initialised();
    first_step = std::min(first_step, reply->first_step());
    tokens_.push_back(reply->token());
    saves_checkpoints_ = saves_checkpoints_ && reply->saves_checkpoints();
    for (const auto& shard : reply->shards()) {
      if (next_link == links_.size())
        return absl::UnavailableError(
            fmt::format("{} has more shards than it said: it was just started again", controls_[i]->name()));
      links_[next_link++]->endpoints = {shard.endpoints().begin(), shard.endpoints().end()};
    }
  }
  step_ = first_step - 1;
  return absl::OkStatus();
}

}  // namespace gradrail::worker
