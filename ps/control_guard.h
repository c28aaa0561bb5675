#pragma once

#include <grpcpp/grpcpp.h>

#include "ps/call_proof.h"
#include "ps/control.grpc.pb.h"
#include "ps/control_service.h"

namespace gradrail::ps {

/// What stands between the network and the control plane: lets calls through that prove to know the job's secret, and
/// reads of no other more than kMaxMessageBytes. Threads  Any.
class ControlGuard final : public proto::Control::Service {
 public:
  ControlGuard(ControlService& service, std::string secret) : service_(service), checker_(std::move(secret)) {}

  grpc::Status Describe(grpc::ServerContext*, const proto::DescribeRequest*, proto::DescribeReply*) override;
  grpc::Status Join(grpc::ServerContext*, grpc::ServerReader<proto::Part>*, proto::JoinReply*) override;
  grpc::Status Barrier(grpc::ServerContext*, const proto::BarrierRequest*, proto::BarrierReply*) override;
  grpc::Status Heartbeat(grpc::ServerContext*, grpc::ServerReaderWriter<proto::Notice, proto::Ping>*) override;
  grpc::Status Stats(grpc::ServerContext*, const proto::StatsRequest*, proto::StatsReply*) override;
  grpc::Status Checkpoint(grpc::ServerContext*, const proto::CheckpointRequest*, proto::CheckpointReply*) override;
  grpc::Status CheckpointOutcome(grpc::ServerContext*, const proto::CheckpointOutcomeRequest*,
                                 proto::CheckpointOutcomeReply*) override;
  grpc::Status Leave(grpc::ServerContext*, const proto::LeaveRequest*, proto::LeaveReply*) override;
  grpc::Status Trace(grpc::ServerContext*, grpc::ServerReader<proto::Part>*, proto::TraceReply*) override;
  grpc::Status Mirror(grpc::ServerContext*, grpc::ServerReader<proto::Part>*, proto::MirrorReply*) override;

 private:
  absl::Status check(const grpc::ServerContext& context, std::string_view method);
  template <typename Call>
  grpc::Status let_through(const grpc::ServerContext* context, std::string_view method, Call call);

  ControlService& service_;
  CallChecker checker_;
};

}  // namespace gradrail::ps
