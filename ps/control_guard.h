#pragma once

#include <grpcpp/grpcpp.h>

#include "ps/call_proof.h"
#include "ps/control.grpc.pb.h"
#include "ps/control_service.h"

namespace gradrail::ps {

/// What stands between the network and the control plane: lets calls through that prove to know the job's secret, and
/// reads nothing of any other. Threads  Any.
class ControlGuard final : public proto::Control::Service {
 public:
  ControlGuard(ControlService& service, std::string secret) : service_(service), checker_(std::move(secret)) {}

 private:
  using Parts = grpc::ServerReader<proto::Part>;
  grpc::Status Describe(grpc::ServerContext*, Parts*, proto::DescribeReply*) override;
  grpc::Status Join(grpc::ServerContext*, Parts*, proto::JoinReply*) override;
  grpc::Status Barrier(grpc::ServerContext*, Parts*, proto::BarrierReply*) override;
  grpc::Status Heartbeat(grpc::ServerContext*, grpc::ServerReaderWriter<proto::Notice, proto::Ping>*) override;
  grpc::Status Stats(grpc::ServerContext*, Parts*, proto::StatsReply*) override;
  grpc::Status Checkpoint(grpc::ServerContext*, Parts*, proto::CheckpointReply*) override;
  grpc::Status CheckpointOutcome(grpc::ServerContext*, Parts*, proto::CheckpointOutcomeReply*) override;
  grpc::Status Leave(grpc::ServerContext*, Parts*, proto::LeaveReply*) override;
  grpc::Status Trace(grpc::ServerContext*, Parts*, proto::TraceReply*) override;
  grpc::Status Mirror(grpc::ServerContext*, Parts*, proto::MirrorReply*) override;

  template <typename Request, typename Reply>
  grpc::Status serve(const char* name,
                     grpc::Status (ControlService::*method)(grpc::ServerContext*, const Request*, Reply*),
                     grpc::ServerContext* context, Parts* parts, Reply* reply);

  ControlService& service_;
  CallChecker checker_;
};

}  // namespace gradrail::ps
