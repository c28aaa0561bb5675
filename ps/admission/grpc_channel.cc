#include "ps/admission/grpc_channel.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "base/status.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control_call.h"

namespace gradrail::ps {
namespace {

using Message = google::protobuf::Message;
using Stub = proto::Control::Stub;

template <typename Request, typename Reply>
grpc::Status call_as(Stub& stub, Method<Request, Reply> method, Duration timeout, const Message& request,
                     Message& reply) {
  GRADRAIL_CHECK(request.GetDescriptor() == Request::descriptor() && reply.GetDescriptor() == Reply::descriptor());
  return call(stub, method, timeout, static_cast<const Request&>(request), static_cast<Reply&>(reply));
}

/// A heartbeat without its own thread: gRPC calls it when a ping was answered.
class GrpcHeartbeat final : public HeartbeatStream,
                            private grpc::ClientBidiReactor<proto::Ping, proto::HeartbeatReply> {
 public:
  GrpcHeartbeat(Stub& stub, const proto::Member& member) : stub_(stub) {
    context_.AddMetadata(kMemberHeader, member.SerializeAsString());
  }
  ~GrpcHeartbeat() override {
    if (!is_open_) return;
    context_.TryCancel();
    finish().ok();
  }

  void ask(const proto::Ping& ping, proto::HeartbeatReply& reply, Answered answered) override {
    answered_ = std::move(answered);
    unfinished_ = 2;
    const bool is_first = !std::exchange(is_open_, true);
    if (is_first) {
      {  // locked until gRPC passes this object to its threads, a synchronization that ThreadSanitizer does not detect
        MutexLock lock(mutex_);
        ended_.reset();
      }
      stub_.async()->Heartbeat(&context_, this);
      AddHold();  // later pings begin outside of its calls
    }
    StartRead(&reply);
    StartWrite(&ping);
    if (is_first) StartCall();
  }

  grpc::Status finish() override {
    if (!is_open_) return grpc::Status::CANCELLED;
    if (!std::exchange(is_released_, true)) RemoveHold();
    MutexLock lock(mutex_);
    while (!ended_.has_value()) changed_.wait(lock);
    return *ended_;
  }

 private:
  void OnReadDone(bool ok) override {
    was_read_ = ok;
    count_down();
  }
  void OnWriteDone(bool) override { count_down(); }  // a write that fails ends the stream, and with it the read
  void OnDone(const grpc::Status& status) override {
    const MutexLock lock(mutex_);
    ended_ = status;
    changed_.notify_all();
  }
  /// The next ping may begin when both operations of the last one have ended.
  void count_down() {
    if (--unfinished_ == 0) answered_(was_read_);
  }

  Stub& stub_;
  grpc::ClientContext context_;
  Answered answered_;
  std::atomic<int> unfinished_ = 0;
  std::atomic<bool> was_read_ = false;
  // The caller's thread.
  bool is_open_ = false;
  bool is_released_ = false;

  Mutex mutex_;
  ConditionVariable changed_;
  std::optional<grpc::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

class GrpcChannel final : public ControlChannel {
 public:
  explicit GrpcChannel(const std::shared_ptr<grpc::Channel>& channel) : stub_(proto::Control::NewStub(channel)) {}

  grpc::Status call(ControlCall call, Duration timeout, const Message& request, Message& reply) override {
    const auto as = [&](auto method) { return call_as(*stub_, method, timeout, request, reply); };
    switch (call) {
      case ControlCall::describe:
        return as(&Stub::Describe);
      case ControlCall::join:
        return as(&Stub::Join);
      case ControlCall::barrier:
        return as(&Stub::Barrier);
      case ControlCall::stats:
        return as(&Stub::Stats);
      case ControlCall::checkpoint:
        return as(&Stub::Checkpoint);
      case ControlCall::checkpoint_outcome:
        return as(&Stub::CheckpointOutcome);
      case ControlCall::leave:
        return as(&Stub::Leave);
      case ControlCall::trace:
        return as(&Stub::Trace);
      case ControlCall::replicate:
        return as(&Stub::Replicate);
    }
    return {grpc::StatusCode::UNIMPLEMENTED, "no such call"};
  }

  std::unique_ptr<HeartbeatStream> heartbeat(const proto::Member& member) override {
    return std::make_unique<GrpcHeartbeat>(*stub_, member);
  }

 private:
  const std::unique_ptr<Stub> stub_;
};

class GrpcDialer final : public ControlDialer {
 public:
  GrpcDialer(std::shared_ptr<grpc::ChannelCredentials> credentials, std::string secret,
             grpc::ChannelArguments arguments)
      : credentials_(std::move(credentials)), secret_(std::move(secret)), arguments_(std::move(arguments)) {}

  absl::StatusOr<std::unique_ptr<ControlChannel>> open(const std::string& address, Duration timeout) override {
    GRADRAIL_ASSIGN_OR_RETURN(const auto channel, open_channel(address, credentials_, secret_, arguments_, timeout));
    return std::make_unique<GrpcChannel>(channel);
  }

  absl::Status check_packet_size(const std::string& address, Duration timeout) override {
    return ps::check_packet_size(address, timeout);
  }

 private:
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::string secret_;
  const grpc::ChannelArguments arguments_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ControlDialer>> grpc_dialer(const Security& security, GrpcTimes times) {
  GRADRAIL_ASSIGN_OR_RETURN(auto credentials, channel_credentials(security));
  grpc::ChannelArguments arguments;
  if (times.ping_ms > 0) arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, times.ping_ms);
  // gRPC also sets TCP_USER_TIMEOUT to this.
  if (times.answer_ms > 0) arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, times.answer_ms);
  // gRPC's name for the time that a connect may take.
  if (times.connect_ms > 0) arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, times.connect_ms);
  return std::make_shared<GrpcDialer>(std::move(credentials), security.secret, std::move(arguments));
}

}  // namespace gradrail::ps
