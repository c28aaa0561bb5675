#include "ps/control/control_guard.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <utility>

#include "base/status.h"
#include "ps/control/control_plane.h"
#include "ps/protocol/call_proof.h"
#include "ps/protocol/control.grpc.pb.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/control_status.h"

namespace gradrail::ps {
namespace {

std::string metadata_of(const grpc::ServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  if (found == context.client_metadata().end()) return "";
  // Values are binary, and not terminated by a zero.
  return std::string(found->second.data(), found->second.size());
}

class ControlGuard final : public proto::Control::Service {
 public:
  ControlGuard(ControlPlane& plane, std::string secret) : plane_(plane), checker_(std::move(secret)) {}

 private:
  using Parts = grpc::ServerReader<proto::Part>;

  /// Checks the proof, reads the request, and lets `handle` answer it.
  template <typename Request, typename Handle>
  grpc::Status serve(const char* name, grpc::ServerContext* context, Parts* parts, Handle handle) {
    const absl::Status allowed = checker_.check(metadata_of(*context, kProofMetadata), name);
    if (!allowed.ok()) return to_grpc(allowed);  // nothing of the request is read: its memory belongs to the sender
    Request request;
    const absl::Status read = read_parts(*parts, request);
    return to_grpc(read.ok() ? handle(request) : read);
  }

  grpc::Status Describe(grpc::ServerContext* context, Parts* parts, proto::DescribeReply* reply) override {
    // The first call of a link cannot prove anything yet: it receives a challenge, and no information.
    // The request is not read: the caller has proven nothing.
    if (checker_.has_secret() && metadata_of(*context, kProofMetadata).empty()) {
      reply->set_protocol_version(kProtocolVersion);
      reply->set_challenge(checker_.new_challenge());
      reply->set_answer(checker_.answer(metadata_of(*context, kClientChallengeMetadata), reply->challenge()));
      return grpc::Status::OK;
    }
    return serve<proto::DescribeRequest>("Describe", context, parts,
                                         [&](const auto& request) { return plane_.join.describe(request, *reply); });
  }

  grpc::Status Join(grpc::ServerContext* context, Parts* parts, proto::JoinReply* reply) override {
    return serve<proto::JoinRequest>("Join", context, parts,
                                     [&](const auto& request) { return plane_.join.join(request, *reply); });
  }

  grpc::Status Leave(grpc::ServerContext* context, Parts* parts, proto::LeaveReply*) override {
    return serve<proto::LeaveRequest>("Leave", context, parts,
                                      [&](const auto& request) { return plane_.join.leave(request); });
  }

  grpc::Status Barrier(grpc::ServerContext* context, Parts* parts, proto::BarrierReply* reply) override {
    return serve<proto::BarrierRequest>("Barrier", context, parts, [&](const auto& request) {
      return plane_.barrier.enter(
          request, [context] { return context->IsCancelled(); }, *reply);
    });
  }

  grpc::Status Heartbeat(grpc::ServerContext* context,
                         grpc::ServerReaderWriter<proto::HeartbeatReply, proto::Ping>* stream) override {
    // One proof for the whole stream: gRPC binds it to one connection.
    const absl::Status allowed = checker_.check(metadata_of(*context, kProofMetadata), "Heartbeat");
    if (!allowed.ok()) return to_grpc(allowed);
    std::optional<Membership::Member> member;
    proto::Ping ping;
    while (stream->Read(&ping)) {
      member = to_member(ping.member());
      proto::HeartbeatReply reply;
      // The member receives the reason by this status. It is not a loss that the other members must learn.
      if (const absl::Status live = plane_.heartbeat.on_ping(ping, reply); !live.ok()) return to_grpc(live);
      // The link has ended: on_stream_end() decides whether that is a loss.
      if (!stream->Write(reply)) break;
    }
    if (member.has_value()) plane_.heartbeat.on_stream_end(*member);
    return grpc::Status::OK;
  }

  grpc::Status Stats(grpc::ServerContext* context, Parts* parts, proto::StatsReply* reply) override {
    return serve<proto::StatsRequest>("Stats", context, parts,
                                      [&](const auto& request) { return plane_.stats.stats(request, *reply); });
  }

  grpc::Status Trace(grpc::ServerContext* context, Parts* parts, proto::TraceReply* reply) override {
    return serve<proto::TraceRequest>("Trace", context, parts,
                                      [&](const auto& request) { return plane_.stats.trace(request, *reply); });
  }

  grpc::Status Checkpoint(grpc::ServerContext* context, Parts* parts, proto::CheckpointReply* reply) override {
    return serve<proto::CheckpointRequest>(
        "Checkpoint", context, parts, [&](const auto& request) { return plane_.checkpoint.save(request, *reply); });
  }

  grpc::Status CheckpointOutcome(grpc::ServerContext* context, Parts* parts,
                                 proto::CheckpointOutcomeReply* reply) override {
    return serve<proto::CheckpointOutcomeRequest>("CheckpointOutcome", context, parts, [&](const auto& request) {
      return plane_.checkpoint.outcome(request, *reply);
    });
  }

  grpc::Status Replicate(grpc::ServerContext* context, Parts* parts, proto::ReplicateReply* reply) override {
    return serve<proto::ReplicateRequest>("Replicate", context, parts,
                                          [&](const auto& request) { return plane_.backup.mirror(request, *reply); });
  }

  ControlPlane& plane_;
  CallChecker checker_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_control_guard(ControlPlane& plane, std::string secret) {
  return std::make_unique<ControlGuard>(plane, std::move(secret));
}

}  // namespace gradrail::ps
