#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace google::protobuf {
class Message;
}
namespace grpc {
class Status;
}

namespace gradrail::ps {

namespace proto {
class HeartbeatReply;
class Member;
class Ping;
}  // namespace proto

/// The calls of the control plane with one request and one reply (control.proto).
enum class ControlCall : uint8_t {
  describe,
  join,
  barrier,
  stats,
  checkpoint,
  checkpoint_outcome,
  leave,
  trace,
  replicate,
  attach
};

/// The stream of pings of one member.
/// Threads  cancel(): any thread. The rest: one thread.
class HeartbeatStream {
 public:
  virtual ~HeartbeatStream() = default;
  /// Sends a ping and waits for its reply. False: the stream has ended, and finish() has the cause.
  virtual bool ask(const proto::Ping& ping, proto::HeartbeatReply& reply) = 0;
  virtual grpc::Status finish() = 0;
  /// Ends the stream, and an ask() in progress.
  virtual void cancel() = 0;
};

/// A connection to the control plane of one ps task. After a loss it stays lost: the caller opens another one.
/// Threads  Any thread.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  /// `request` and `reply` are the messages of this call.
  /// Errors  UNAVAILABLE: the task is lost. DEADLINE_EXCEEDED: no reply within `timeout`. Others: the task's own.
  virtual grpc::Status call(ControlCall call, Duration timeout, const google::protobuf::Message& request,
                            google::protobuf::Message& reply) = 0;
  /// The first ask() opens the stream. Its opening names the member, so that a loss before the first ping
  /// is seen as well. The channel outlives it.
  virtual std::unique_ptr<HeartbeatStream> heartbeat(const proto::Member& member) = 0;
};

/// Opens connections to control planes: over gRPC (ps/admission/grpc_channel.h), or in a simulation.
/// Threads  Any thread.
class ControlDialer {
 public:
  virtual ~ControlDialer() = default;
  /// Errors  UNAVAILABLE, DEADLINE_EXCEEDED: no task answers at this address. Others are final.
  virtual absl::StatusOr<std::unique_ptr<ControlChannel>> open(const std::string& address, Duration timeout) = 0;
};

/// The end of a control plane that accepts connections.
class ControlListener {
 public:
  virtual ~ControlListener() = default;
  virtual uint16_t port() const = 0;
  /// Accepts nothing from now on, and cancels the calls that have not ended after `grace`.
  virtual void shutdown(Duration grace) = 0;
};

}  // namespace gradrail::ps
