#include "ps/control_guard.h"

#include "base/status.h"
#include "ps/control_call.h"
#include "ps/control_status.h"

namespace gradrail::ps {
namespace {

std::string metadata_of(const grpc::ServerContext& context, const char* name) {
  const auto place = context.client_metadata().find(name);
  if (place == context.client_metadata().end()) return "";
  return std::string(place->second.data(), place->second.size());
}

}  // namespace

template <typename Request, typename Reply>
grpc::Status ControlGuard::serve(const char* name,
                                 grpc::Status (ControlService::*method)(grpc::ServerContext*, const Request*, Reply*),
                                 grpc::ServerContext* context, Parts* parts, Reply* reply) {
  const absl::Status allowed = checker_.check(metadata_of(*context, kProofMetadata), name);
  if (!allowed.ok()) return to_grpc(allowed);
  Request request;
  const absl::Status read = read_parts(*parts, request);
  return read.ok() ? (service_.*method)(context, &request, reply) : to_grpc(read);
}

/// The first one of a link has nothing yet to prove anything with: it gets a challenge and learns no more.
grpc::Status ControlGuard::Describe(grpc::ServerContext* context, Parts* parts, proto::DescribeReply* reply) {
  if (checker_.has_secret() && metadata_of(*context, kProofMetadata).empty()) {
    reply->set_protocol_version(kProtocolVersion);
    reply->set_challenge(checker_.new_challenge());
    reply->set_answer(checker_.answer(metadata_of(*context, kQuestionMetadata), reply->challenge()));
    return grpc::Status::OK;
  }
  return serve("Describe", &ControlService::Describe, context, parts, reply);
}

grpc::Status ControlGuard::Join(grpc::ServerContext* context, Parts* parts, proto::JoinReply* reply) {
  return serve("Join", &ControlService::Join, context, parts, reply);
}

grpc::Status ControlGuard::Barrier(grpc::ServerContext* context, Parts* parts, proto::BarrierReply* reply) {
  return serve("Barrier", &ControlService::Barrier, context, parts, reply);
}

grpc::Status ControlGuard::Heartbeat(grpc::ServerContext* context,
                                     grpc::ServerReaderWriter<proto::Notice, proto::Ping>* stream) {
  const absl::Status allowed = checker_.check(metadata_of(*context, kProofMetadata), "Heartbeat");
  return allowed.ok() ? service_.Heartbeat(context, stream) : to_grpc(allowed);
}

grpc::Status ControlGuard::Stats(grpc::ServerContext* context, Parts* parts, proto::StatsReply* reply) {
  return serve("Stats", &ControlService::Stats, context, parts, reply);
}

grpc::Status ControlGuard::Checkpoint(grpc::ServerContext* context, Parts* parts, proto::CheckpointReply* reply) {
  return serve("Checkpoint", &ControlService::Checkpoint, context, parts, reply);
}

grpc::Status ControlGuard::CheckpointOutcome(grpc::ServerContext* context, Parts* parts,
                                             proto::CheckpointOutcomeReply* reply) {
  return serve("CheckpointOutcome", &ControlService::CheckpointOutcome, context, parts, reply);
}

grpc::Status ControlGuard::Leave(grpc::ServerContext* context, Parts* parts, proto::LeaveReply* reply) {
  return serve("Leave", &ControlService::Leave, context, parts, reply);
}

grpc::Status ControlGuard::Trace(grpc::ServerContext* context, Parts* parts, proto::TraceReply* reply) {
  return serve("Trace", &ControlService::Trace, context, parts, reply);
}

grpc::Status ControlGuard::Mirror(grpc::ServerContext* context, Parts* parts, proto::MirrorReply* reply) {
  return serve("Mirror", &ControlService::Mirror, context, parts, reply);
}

}  // namespace gradrail::ps
