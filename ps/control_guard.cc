#include "ps/control_guard.h"

#include "base/status.h"
#include "ps/control_status.h"
#include "ps/message_parts.h"

namespace gradrail::ps {
namespace {

std::string proof_in(const grpc::ServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto place = metadata.find(kProofMetadata);
  return place == metadata.end() ? "" : std::string(place->second.data(), place->second.size());
}

}  // namespace

absl::Status ControlGuard::check(const grpc::ServerContext& context, std::string_view method) {
  return checker_.check(proof_in(context), method);
}

template <typename Call>
grpc::Status ControlGuard::let_through(const grpc::ServerContext* context, std::string_view method, Call call) {
  const absl::Status allowed = check(*context, method);
  return allowed.ok() ? call() : to_grpc(allowed);
}

/// The first one of a link has nothing yet to prove anything with: it gets a challenge and learns no more.
grpc::Status ControlGuard::Describe(grpc::ServerContext* context, const proto::DescribeRequest* request,
                                    proto::DescribeReply* reply) {
  if (checker_.has_secret() && proof_in(*context).empty()) {
    reply->set_protocol_version(kProtocolVersion);
    reply->set_challenge(checker_.new_challenge());
    reply->set_answer(checker_.answer(request->question(), reply->challenge()));
    return grpc::Status::OK;
  }
  return let_through(context, "Describe", [&] { return service_.Describe(context, request, reply); });
}

grpc::Status ControlGuard::Join(grpc::ServerContext* context, grpc::ServerReader<proto::Part>* parts,
                                proto::JoinReply* reply) {
  return let_through(context, "Join", [&] {
    proto::JoinRequest request;
    const absl::Status read = read_parts(*parts, request);
    return read.ok() ? service_.Join(context, &request, reply) : to_grpc(read);
  });
}

grpc::Status ControlGuard::Barrier(grpc::ServerContext* context, const proto::BarrierRequest* request,
                                   proto::BarrierReply* reply) {
  return let_through(context, "Barrier", [&] { return service_.Barrier(context, request, reply); });
}

grpc::Status ControlGuard::Heartbeat(grpc::ServerContext* context,
                                     grpc::ServerReaderWriter<proto::Notice, proto::Ping>* stream) {
  return let_through(context, "Heartbeat", [&] { return service_.Heartbeat(context, stream); });
}

grpc::Status ControlGuard::Stats(grpc::ServerContext* context, const proto::StatsRequest* request,
                                 proto::StatsReply* reply) {
  return let_through(context, "Stats", [&] { return service_.Stats(context, request, reply); });
}

grpc::Status ControlGuard::Checkpoint(grpc::ServerContext* context, const proto::CheckpointRequest* request,
                                      proto::CheckpointReply* reply) {
  return let_through(context, "Checkpoint", [&] { return service_.Checkpoint(context, request, reply); });
}

grpc::Status ControlGuard::CheckpointOutcome(grpc::ServerContext* context,
                                             const proto::CheckpointOutcomeRequest* request,
                                             proto::CheckpointOutcomeReply* reply) {
  return let_through(context, "CheckpointOutcome", [&] { return service_.CheckpointOutcome(context, request, reply); });
}

grpc::Status ControlGuard::Leave(grpc::ServerContext* context, const proto::LeaveRequest* request,
                                 proto::LeaveReply* reply) {
  return let_through(context, "Leave", [&] { return service_.Leave(context, request, reply); });
}

grpc::Status ControlGuard::Trace(grpc::ServerContext* context, grpc::ServerReader<proto::Part>* parts,
                                 proto::TraceReply* reply) {
  return let_through(context, "Trace", [&] {
    proto::TraceRequest request;
    const absl::Status read = read_parts(*parts, request);
    return read.ok() ? service_.Trace(context, &request, reply) : to_grpc(read);
  });
}

grpc::Status ControlGuard::Mirror(grpc::ServerContext* context, grpc::ServerReader<proto::Part>* parts,
                                  proto::MirrorReply* reply) {
  return let_through(context, "Mirror", [&] {
    proto::MirrorRequest request;
    const absl::Status read = read_parts(*parts, request);
    return read.ok() ? service_.Mirror(context, &request, reply) : to_grpc(read);
  });
}

}  // namespace gradrail::ps
