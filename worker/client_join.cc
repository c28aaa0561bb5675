// Joining: control plane first, then one data connection per shard.
#include <sys/random.h>

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/training.h"
#include "spdlog/spdlog.h"
#include "transport/registry.h"
#include "worker/client_impl.h"

namespace gradrail::worker {
namespace {

/// One attempt over one transport: connecting, greeting and mapping take milliseconds where they work at all.
constexpr auto kConnectDeadline = std::chrono::seconds(10);

uint64_t random_incarnation() {
  uint64_t value = 0;
  GRADRAIL_CHECK(getrandom(&value, sizeof(value), 0) == sizeof(value));
  return value | 1;  // never 0
}

}  // namespace

Client::Impl::Impl(ClientOptions options, ps::Schema schema)
    : options_(std::move(options)),
      schema_(std::move(schema)),
      incarnation_(random_incarnation()),
      wait_set_(options_.wait) {
  tensor_first_.push_back(0);
  for (const ps::Tensor& tensor : schema_) tensor_first_.push_back(tensor_first_.back() + tensor.elements());
  if (!options_.notice) options_.notice = [](const std::string& text) { spdlog::warn("{}", text); };
}

Client::Impl::~Impl() {
  if (failure().ok() && !left_) leave().IgnoreError();
  for (const auto& control : controls_) control->stop_heartbeat();
  for (const auto& link : links_) {
    if (link->connection != nullptr) contexts_[link->context_index].context->close(link->connection);
  }
}

absl::Status Client::Impl::join() {
  const TimePoint deadline = Clock::now() + options_.join_timeout;
  GRADRAIL_RETURN_IF_ERROR(allocate());
  GRADRAIL_RETURN_IF_ERROR(describe_all(deadline));
  GRADRAIL_RETURN_IF_ERROR(check_one_checkpoint_folder(controls_));
  GRADRAIL_RETURN_IF_ERROR(join_all(deadline));
  for (const auto& link : links_) {
    if (link->buckets.empty()) continue;  // more shards than elements: nothing to exchange with this one
    GRADRAIL_RETURN_IF_ERROR(connect(*link, deadline));
  }
  return failure();
}

absl::Status Client::Impl::allocate() {
  const size_t bytes = tensor_first_.back() * sizeof(float);
  absl::StatusOr<SharedMemory> parameters = SharedMemory::create("gradrail-parameters", bytes);
  if (!parameters.ok()) return parameters.status();
  absl::StatusOr<SharedMemory> gradients = SharedMemory::create("gradrail-gradients", bytes);
  if (!gradients.ok()) return gradients.status();
  parameters_ = *std::move(parameters);
  gradients_ = *std::move(gradients);
  return absl::OkStatus();
}

absl::Status Client::Impl::describe_all(TimePoint deadline) {
  const std::string host_id = transport::host_id();
  uint32_t shard_count = 0;
  for (uint32_t i = 0; i < options_.cluster.ps.size(); ++i) {
    controls_.push_back(std::make_unique<ControlLink>(i, options_.cluster.ps[i], options_.notice, options_.stop));
    const absl::StatusOr<ps::proto::DescribeReply> reply = controls_[i]->describe(deadline);
    if (!reply.ok()) return reply.status();
    std::vector<transport::PeerTransport> theirs;
    for (const auto& transport : reply->transports()) theirs.push_back({transport.name(), transport.refused()});
    for (uint32_t k = 0; k < reply->shard_count(); ++k) {
      auto link = std::make_unique<ShardLink>();
      link->ps_index = i;
      link->shard_index = shard_count++;
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
  *request.mutable_training() =
      ps::to_proto({.mode = {.kind = options_.mode, .worker_count = static_cast<uint32_t>(names.size())},
                    .optimizer = options_.optimizer,
                    .bucket_bytes = options_.bucket_bytes,
                    .agreement = options_.agreement});
  request.set_first_shard(first_shard);
  request.set_total_shards(map_.shard_count());
  return request;
}

absl::Status Client::Impl::join_all(TimePoint deadline) {
  size_t next_link = 0;
  uint64_t first_step = UINT64_MAX;
  for (const auto& control : controls_) {
    const absl::StatusOr<ps::proto::JoinReply> reply =
        control->join(join_request(static_cast<uint32_t>(next_link)), deadline);
    if (!reply.ok()) return reply.status();
    control->start_heartbeat(member(), [this](absl::Status cause) { fail(std::move(cause)); });
    initialised_ = initialised_ && reply->initialised();
    first_step = std::min(first_step, reply->first_step());
    tokens_.push_back(reply->token());
    saves_checkpoints_ = saves_checkpoints_ && reply->saves_checkpoints();
    for (const auto& shard : reply->shards()) {
      GRADRAIL_CHECK(next_link < links_.size());
      links_[next_link++]->endpoints = {shard.endpoints().begin(), shard.endpoints().end()};
    }
  }
  step_ = first_step - 1;
  return absl::OkStatus();
}

absl::Status Client::Impl::connect(ShardLink& link, TimePoint deadline) {
  for (transport::Candidate& candidate : link.candidates) {
    if (candidate.refused.empty()) {
      const absl::Status connected = connect_over(link, candidate, std::min(deadline, Clock::now() + kConnectDeadline));
      if (connected.ok()) return absl::OkStatus();
      GRADRAIL_RETURN_IF_ERROR(failure());
      candidate.refused = message_of(connected);
    }
    if (!options_.fallback) {
      return absl::FailedPreconditionError(
          fmt::format("shard {} at {}: transport {} refused: {} (and fallback is forbidden)", link.shard_index,
                      controls_[link.ps_index]->address(), candidate.name, candidate.refused));
    }
  }
  return absl::UnavailableError(fmt::format("shard {} at {}: no transport can be used ({})", link.shard_index,
                                            controls_[link.ps_index]->address(),
                                            transport::explain(link.candidates, "none")));
}

absl::StatusOr<size_t> Client::Impl::open_context(const std::string& name) {
  for (size_t i = 0; i < contexts_.size(); ++i) {
    if (contexts_[i].transport == name) return i;
  }
  const absl::StatusOr<const transport::Transport*> found = transport::find_transport(name);
  if (!found.ok()) return found.status();
  absl::StatusOr<std::unique_ptr<transport::Context>> context = (*found)->open({.bind_host = options_.bind_host});
  if (!context.ok()) return context.status();
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> parameters =
      (*context)->register_memory(parameters_.span(), transport::Access::remote_write);
  if (!parameters.ok()) return parameters.status();
  // Only a transport that maps lets the shard read gradients; elsewhere they are pushed.
  const auto access = (*context)->capabilities().direct_map ? transport::Access::remote_read : transport::Access::local;
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> gradients =
      (*context)->register_memory(gradients_.span(), access);
  if (!gradients.ok()) return gradients.status();
  contexts_.push_back({name, *std::move(context), *std::move(parameters), *std::move(gradients)});
  wait_set_.add(contexts_.back().context.get());
  return contexts_.size() - 1;
}

absl::Status Client::Impl::register_link(ShardLink& link) {
  transport::Context& context = *contexts_[link.context_index].context;
  absl::StatusOr<SharedMemory> headers =
      SharedMemory::create("gradrail-headers", link.buckets.size() * sizeof(ps::SlotHeader));
  if (!headers.ok()) return headers.status();
  absl::StatusOr<SharedMemory> returns =
      SharedMemory::create("gradrail-returns", link.buckets.size() * sizeof(ps::ReturnHeader));
  if (!returns.ok()) return returns.status();
  link.headers_region.reset();  // of an earlier candidate
  link.returns_region.reset();
  link.headers = *std::move(headers);
  link.returns = *std::move(returns);
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> headers_region =
      context.register_memory(link.headers.span(), transport::Access::local);
  if (!headers_region.ok()) return headers_region.status();
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> returns_region =
      context.register_memory(link.returns.span(), transport::Access::remote_write);
  if (!returns_region.ok()) return returns_region.status();
  link.headers_region = *std::move(headers_region);
  link.returns_region = *std::move(returns_region);
  return absl::OkStatus();
}

absl::Status Client::Impl::connect_over(ShardLink& link, const transport::Candidate& candidate, TimePoint deadline) {
  const auto endpoint = std::find_if(link.endpoints.begin(), link.endpoints.end(),
                                     [&](const auto& e) { return e.transport() == candidate.name; });
  if (endpoint == link.endpoints.end()) return absl::UnavailableError("the shard does not listen on it");
  const absl::StatusOr<size_t> context_index = open_context(candidate.name);
  if (!context_index.ok()) return context_index.status();
  link.context_index = *context_index;
  GRADRAIL_RETURN_IF_ERROR(register_link(link));
  absl::StatusOr<transport::Connection*> connection =
      contexts_[link.context_index].context->connect(endpoint->address(), deadline);
  if (!connection.ok()) return connection.status();
  link.connection = *connection;
  link.connection->set_user_data(reinterpret_cast<uint64_t>(&link));
  absl::Status greeted = greet(link, deadline);
  if (greeted.ok()) return absl::OkStatus();
  if (link.connection != nullptr) contexts_[link.context_index].context->close(link.connection);
  link.connection = nullptr;
  return greeted;
}

absl::Status Client::Impl::greet(ShardLink& link, TimePoint deadline) {
  const OpenContext& open = contexts_[link.context_index];
  ps::proto::Hello hello;
  *hello.mutable_member() = member();
  hello.set_token(tokens_[link.ps_index]);
  hello.set_parameters_key(open.parameters->key());
  hello.set_returns_key(link.returns_region->key());
  if (open.context->capabilities().direct_map) hello.set_gradients_key(open.gradients->key());
  const std::string bytes = hello.SerializeAsString();
  link.refused.clear();
  link.welcome = false;
  bool sent = false;
  while (!link.welcome) {
    if (!sent) {
      const absl::Status posted =
          link.connection->send(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
      if (!posted.ok() && !absl::IsResourceExhausted(posted)) return posted;
      sent = posted.ok();
    }
    transport::Completion completions[16];
    const TimePoint patience = std::min(deadline, Clock::now() + std::chrono::milliseconds(sent ? 100 : 1));
    const size_t count = wait_set_.wait(absl::MakeSpan(completions), patience);
    for (size_t i = 0; i < count; ++i) take(completions[i]);
    if (!link.refused.empty()) return absl::UnavailableError(link.refused);
    GRADRAIL_RETURN_IF_ERROR(failure());
    if (Clock::now() >= deadline) return absl::DeadlineExceededError("the shard did not answer the Hello in time");
  }
  return absl::OkStatus();
}

void Client::Impl::take_welcome(ShardLink& link, absl::Span<const std::byte> message) {
  ps::proto::Welcome welcome;
  if (!welcome.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    link.refused = "the shard's answer is not a Welcome";
    return;
  }
  if (!welcome.refused().empty()) {
    link.refused = welcome.refused();
    return;
  }
  const absl::StatusOr<transport::RemoteRegion> slots = link.connection->import(welcome.slots_key());
  if (!slots.ok()) {
    link.refused = message_of(slots.status());
    return;
  }
  link.slots = *slots;
  link.gradients_mapped = welcome.gradients_mapped();
  link.welcome = true;
}

}  // namespace gradrail::worker
