#include "tests/worker/client/raw_worker.h"

#include <cstring>
#include <random>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/mac.h"
#include "ps/protocol/path_check.h"
#include "ps/protocol/training.h"
#include "transport/registry.h"

namespace gradrail::worker {
namespace {

uint64_t elements_of(const Schema& schema) {
  uint64_t elements = 0;
  for (const Tensor& tensor : schema) elements += tensor.elements();
  return elements;
}

}  // namespace

RawWorker::RawWorker(const ClientOptions& options, const Schema& schema)
    : options_(options), schema_(schema), incarnation_(std::random_device()() | 1u) {}

RawWorker::~RawWorker() { vanish(); }

absl::Status RawWorker::join() {
  ps::proto::DescribeReply description;
  ps::proto::DescribeRequest ask;
  ask.set_protocol_version(ps::kProtocolVersion);
  ps::proto::JoinRequest request;
  for (const std::string& address : options_.cluster.ps) {
    GRADRAIL_ASSIGN_OR_RETURN(const auto channel,
                              ps::open_channel(address, grpc::InsecureChannelCredentials(), "", {}, 20s));
    auto stub = ps::proto::Control::NewStub(channel);
    const grpc::Status described = ps::call(*stub, &ps::proto::Control::Stub::Describe, 20s, ask, description);
    if (!described.ok()) return ps::from_grpc(described);
    if (stub_ == nullptr) stub_ = std::move(stub);
    request.set_group(ps::with_process(request.group(), description.process()));
  }
  request.set_protocol_version(ps::kProtocolVersion);
  request.mutable_member()->set_task_index(options_.task_index);
  request.mutable_member()->set_incarnation(incarnation_);
  request.set_worker_name("raw");
  ps::to_proto(schema_, request);
  Mode mode = options_.mode;
  mode.worker_count = static_cast<uint32_t>(options_.cluster.workers.size());
  *request.mutable_training() = ps::to_proto({.mode = mode,
                                              .optimizer = options_.optimizer,
                                              .push = options_.compression.push,
                                              .bucket_bytes = options_.bucket_bytes});
  request.set_total_shards(description.shard_count() * static_cast<uint32_t>(options_.cluster.ps.size()));
  const grpc::Status joined = ps::call(*stub_, &ps::proto::Control::Stub::Join, 20s, request, reply_);
  if (!joined.ok()) return ps::from_grpc(joined);
  heartbeat_context_ = std::make_unique<grpc::ClientContext>();
  heartbeat_ = std::thread([this] {
    const auto stream = stub_->Heartbeat(heartbeat_context_.get());
    ps::proto::Ping ping;
    ping.mutable_member()->set_task_index(options_.task_index);
    ping.mutable_member()->set_incarnation(incarnation_);
    ps::proto::HeartbeatReply reply;
    while (stream->Write(ping) && stream->Read(&reply)) {
      beats_ = true;
      std::this_thread::sleep_for(100ms);
    }
    stream->Finish();
  });
  // The end of a heartbeat is noticed, one that never began only after the silence limit.
  return eventually([&] { return beats_.load(); }) ? absl::OkStatus() : absl::DeadlineExceededError("no heartbeat");
}

std::string RawWorker::address(const std::string& transport) const {
  for (const auto& endpoint : reply_.shards(0).endpoints()) {
    if (endpoint.transport() == transport) return endpoint.address();
  }
  return "";
}

bool RawWorker::Link::is_lost() {
  transport::Completion completion;
  return context->poll({&completion, 1}) == 1 && completion.kind == transport::Completion::Kind::peer_lost;
}

void RawWorker::vanish() {
  if (!heartbeat_.joinable()) return;
  heartbeat_context_->TryCancel();
  heartbeat_.join();
}

absl::Status RawWorker::open(const std::string& transport) {
  GRADRAIL_ASSIGN_OR_RETURN(const transport::Transport* const found, transport::find_transport(transport));
  GRADRAIL_ASSIGN_OR_RETURN(link_.context, found->open({}));
  GRADRAIL_ASSIGN_OR_RETURN(transport::Connection * connection,
                            link_.context->connect(address(transport), Clock::now() + 5s));
  link_.connection = connection;
  return absl::OkStatus();
}

absl::StatusOr<std::string> RawWorker::start_handshake(const Handshake& handshake, Until until) {
  GRADRAIL_RETURN_IF_ERROR(open(handshake.transport));
  const size_t model_bytes = elements_of(schema_) * sizeof(float);
  const size_t header_bytes =
      std::max<size_t>(ps::kCheckBytes, (model_bytes / options_.bucket_bytes + 1) * sizeof(ps::SlotHeader));
  const size_t sizes[4] = {handshake.parameters_bytes == 0 ? model_bytes : handshake.parameters_bytes,
                           handshake.gradients_bytes == 0 ? model_bytes : handshake.gradients_bytes, header_bytes,
                           header_bytes};
  using transport::Access;
  const bool maps = link_.context->capabilities().direct_map;
  const Access writable = maps ? Access::remote_read_write : Access::remote_write;
  const Access access[4] = {handshake.parameters_writable ? writable : Access::remote_read,
                            maps ? Access::remote_read : Access::local, Access::remote_write, Access::local};
  for (int i = 0; i < 4; ++i) {
    link_.memory[i] = *SharedMemory::create("gradrail-raw", sizes[i]);
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<transport::MemoryRegion> region,
                              link_.context->register_memory(link_.memory[i].span(), access[i]));
    link_.regions.push_back(std::move(region));
  }
  ps::proto::ToShard message;
  ps::proto::JoinPath& join_path = *message.mutable_join_path();
  join_path.mutable_member()->set_task_index(handshake.task_index == UINT32_MAX ? options_.task_index
                                                                                : handshake.task_index);
  join_path.mutable_member()->set_incarnation(incarnation_);
  std::string challenge;
  GRADRAIL_RETURN_IF_ERROR(await_next([&](const auto* said) {
    if (said != nullptr) challenge = said->challenge();
    return !challenge.empty();
  }));
  join_path.set_proof(handshake.proof.empty() ? ps::mac_of(reply_.token(), {challenge}) : handshake.proof);
  last_proof_ = join_path.proof();
  join_path.set_parameters_key(link_.regions[0]->key());
  join_path.set_returns_key(link_.regions[2]->key());
  if (maps) join_path.set_gradients_key(link_.regions[1]->key());
  join_path.set_check_seed(kCheckSeed);
  say(message);
  absl::Status arrived = await_next([](const auto* said) { return said != nullptr && said->has_welcome(); });
  if (arrived.ok() && until != Until::welcome) {
    put_check(kCheckSeed);
    arrived = await_next([](const auto* said) { return said == nullptr; });
  }
  if (arrived.ok() && until == Until::active) {
    message.mutable_ready();
    say(message);
    arrived = await_next([](const auto* said) { return said != nullptr && said->has_active(); });
  }
  if (absl::IsInvalidArgument(arrived)) return std::string(message_of(arrived));
  if (!arrived.ok()) return arrived;
  return "";
}

absl::StatusOr<std::string> RawWorker::handshake_with(const std::string& transport, const std::string& message) {
  GRADRAIL_RETURN_IF_ERROR(open(transport));
  GRADRAIL_RETURN_IF_ERROR(
      link_.connection->send({reinterpret_cast<const std::byte*>(message.data()), message.size()}));
  const absl::Status arrived = await_next([](const auto* said) { return said != nullptr && said->has_welcome(); });
  if (absl::IsInvalidArgument(arrived)) return std::string(message_of(arrived));
  if (!arrived.ok()) return arrived;
  return "";
}

void RawWorker::say(const ps::proto::ToShard& message) {
  const std::string bytes = message.SerializeAsString();
  const absl::Status sent = link_.connection->send({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
  EXPECT_TRUE(sent.ok()) << sent;
}

void RawWorker::put_check(uint64_t seed) {
  ps::fill_check({link_.memory[3].data(), ps::kCheckBytes}, seed);
  put(ps::kCheckBytes, 0, ps::kCheckImmediate);
}

absl::Status RawWorker::await_next(const std::function<bool(const ps::proto::ToWorker*)>& is_it) {
  const TimePoint deadline = Clock::now() + 10s;
  transport::Completion completion;
  while (Clock::now() < deadline) {
    if (link_.context->poll({&completion, 1}) == 0) {
      std::this_thread::yield();
      continue;
    }
    if (completion.kind == transport::Completion::Kind::peer_lost) return completion.cause;
    if (completion.kind == transport::Completion::Kind::put_arrived && is_it(nullptr)) return absl::OkStatus();
    if (completion.kind != transport::Completion::Kind::message) continue;
    ps::proto::ToWorker said;
    GRADRAIL_CHECK(said.ParseFromArray(completion.message.data(), static_cast<int>(completion.message.size())));
    if (said.has_refused()) return absl::InvalidArgumentError(said.refused());
    if (said.has_welcome()) {
      GRADRAIL_ASSIGN_OR_RETURN(link_.slots, link_.connection->import(said.welcome().slots_key()));
    }
    if (is_it(&said)) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the shard did not answer");
}

ps::SlotHeader RawWorker::header(uint32_t bucket, uint64_t payload_bytes) const {
  return {.kind = ps::ArrivalKind::push,
          .bucket = bucket,
          .payload_bytes = static_cast<uint32_t>(payload_bytes),
          .step = 1,
          .incarnation = incarnation_};
}

void RawWorker::push(const ps::SlotHeader& header, uint64_t immediate) {
  std::memcpy(link_.memory[3].data(), &header, sizeof(header));
  const uint64_t offset = std::min<uint64_t>(immediate, header.bucket) * sizeof(ps::SlotHeader);
  put(sizeof(header), offset, immediate);
}

void RawWorker::put(size_t bytes, uint64_t offset, uint64_t immediate) {
  absl::Status posted = absl::ResourceExhaustedError("not yet");
  const TimePoint deadline = Clock::now() + 10s;
  while (absl::IsResourceExhausted(posted) && Clock::now() < deadline) {
    posted = link_.connection->put({link_.regions[3].get(), 0, bytes}, {link_.slots, offset}, {.immediate = immediate});
    transport::Completion completion;
    if (absl::IsResourceExhausted(posted)) link_.context->poll({&completion, 1});
  }
  EXPECT_TRUE(posted.ok()) << posted;
}

std::string RawWorker::refusal_reason(Duration limit) {
  const TimePoint deadline = Clock::now() + limit;
  transport::Completion completion;
  while (Clock::now() < deadline) {
    if (link_.context->poll({&completion, 1}) == 0) {
      std::this_thread::yield();
      continue;
    }
    if (completion.kind == transport::Completion::Kind::peer_lost) return std::string(message_of(completion.cause));
    if (completion.kind != transport::Completion::Kind::message) continue;
    ps::proto::ToWorker said;
    if (said.ParseFromArray(completion.message.data(), static_cast<int>(completion.message.size()))) {
      return said.refused();
    }
  }
  return "";
}

}  // namespace gradrail::worker
