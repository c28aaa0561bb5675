#include "ps/control/control_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/out_of_memory.h"
#include "ps/control/control_plane.h"
#include "ps/protocol/control.grpc.pb.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/control_status.h"

namespace gradrail::ps {
namespace {

/// The worker of a heartbeat by its header; none: the header is absent or damaged.
std::optional<Membership::Member> announced_member(const grpc::ServerContextBase& context) {
  const auto header = context.client_metadata().find(kMemberHeader);
  proto::Member member;
  if (header == context.client_metadata().end() ||
      !member.ParseFromArray(header->second.data(), static_cast<int>(header->second.size()))) {
    return std::nullopt;
  }
  return to_member(member);
}

/// Runs a handler and catches its exceptions: gRPC answers an exception with "Unexpected error in RPC handling", and
/// ends this process if a reactor throws it.
template <typename Handler>
grpc::Status answer(std::string_view call, Handler handler) {
  return to_grpc(without_exceptions(call, std::move(handler)));
}

/// The heartbeat of one worker. It holds no thread while it waits: a task has thousands of them.
/// Threads  Those of gRPC, one at a time. gRPC owns the object from its construction to OnDone().
class MemberHeartbeat final : public grpc::ServerBidiReactor<proto::Ping, proto::HeartbeatReply> {
 public:
  MemberHeartbeat(HeartbeatHandler& handler, std::optional<Membership::Member> announced)
      : handler_(handler), member_(announced) {
    StartRead(&ping_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return end();
    member_ = to_member(ping_.member());
    reply_.Clear();
    // The member receives the reason by this status. The loss is not one that the other members must receive.
    const grpc::Status live = answer("the call Heartbeat", [this] { return handler_.on_ping(ping_, reply_); });
    if (!live.ok()) return Finish(live);
    StartWrite(&reply_);
  }
  void OnWriteDone(bool ok) override { ok ? StartRead(&ping_) : end(); }
  void OnDone() override { delete this; }

 private:
  /// The link has ended: on_stream_end() decides whether that is a loss.
  void end() {
    if (member_.has_value()) handler_.on_stream_end(*member_, reply_.next_ping_us());
    Finish(grpc::Status::OK);
  }

  HeartbeatHandler& handler_;
  std::optional<Membership::Member> member_;
  proto::Ping ping_;
  proto::HeartbeatReply reply_;
};

/// A worker in a barrier. It holds no thread either.
class MemberBarrier final : public grpc::ServerUnaryReactor {
 public:
  MemberBarrier(BarrierHandler& handler, const proto::BarrierRequest& request, proto::BarrierReply& reply)
      : handler_(handler),
        wait_(handler.enter(request, reply, [this](const absl::Status& status) { Finish(to_grpc(status)); })) {}

  /// gRPC calls this after the constructor.
  void OnCancel() override { handler_.cancel(wait_); }
  void OnDone() override { delete this; }

 private:
  BarrierHandler& handler_;
  const uint64_t wait_;
};

using BlockingCalls = proto::Control::Service;
using CallbackCalls =
    proto::Control::WithCallbackMethod_Barrier<proto::Control::WithCallbackMethod_Heartbeat<BlockingCalls>>;

class ControlService final : public CallbackCalls {
 public:
  explicit ControlService(ControlPlane& plane) : plane_(plane) {}

 private:
  using Context = grpc::ServerContext;

  grpc::Status Describe(Context*, const proto::DescribeRequest* request, proto::DescribeReply* reply) override {
    return answer("the call Describe", [&] { return plane_.join.describe(*request, *reply); });
  }

  grpc::Status Join(Context*, const proto::JoinRequest* request, proto::JoinReply* reply) override {
    return answer("the call Join", [&] { return plane_.join.join(*request, *reply); });
  }

  grpc::Status Leave(Context*, const proto::LeaveRequest* request, proto::LeaveReply* reply) override {
    return answer("the call Leave", [&] { return plane_.join.leave(*request, *reply); });
  }

  grpc::ServerUnaryReactor* Barrier(grpc::CallbackServerContext*, const proto::BarrierRequest* request,
                                    proto::BarrierReply* reply) override {
    return new MemberBarrier(plane_.barrier, *request, *reply);
  }

  grpc::ServerBidiReactor<proto::Ping, proto::HeartbeatReply>* Heartbeat(
      grpc::CallbackServerContext* context) override {
    return new MemberHeartbeat(plane_.heartbeat, announced_member(*context));
  }

  grpc::Status Stats(Context*, const proto::StatsRequest* request, proto::StatsReply* reply) override {
    return answer("the call Stats", [&] { return plane_.stats.stats(*request, *reply); });
  }

  grpc::Status Trace(Context*, const proto::TraceRequest* request, proto::TraceReply* reply) override {
    return answer("the call Trace", [&] { return plane_.stats.trace(*request, *reply); });
  }

  grpc::Status Checkpoint(Context*, const proto::CheckpointRequest* request, proto::CheckpointReply* reply) override {
    return answer("the call Checkpoint", [&] { return plane_.checkpoint.save(*request, *reply); });
  }

  grpc::Status CheckpointOutcome(Context*, const proto::CheckpointOutcomeRequest* request,
                                 proto::CheckpointOutcomeReply* reply) override {
    return answer("the call CheckpointOutcome", [&] { return plane_.checkpoint.outcome(*request, *reply); });
  }

  grpc::Status Replicate(Context*, const proto::ReplicateRequest* request, proto::ReplicateReply* reply) override {
    return answer("the call Replicate", [&] { return plane_.backup.mirror(*request, *reply); });
  }

  ControlPlane& plane_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_control_service(ControlPlane& plane) {
  return std::make_unique<ControlService>(plane);
}

}  // namespace gradrail::ps
