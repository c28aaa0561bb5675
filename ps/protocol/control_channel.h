#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"

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
  replicate
};

/// Time from the reply to a ping until the next ping, in runs of usual size.
inline constexpr Duration kShortestHeartbeat = std::chrono::milliseconds(500);

/// The same in a run with so many members. A ping takes the server 0.1 ms of a core. In a large run its rate is 167
/// per second: the heartbeats of any number of members take about 2 % of a core.
constexpr Duration heartbeat_interval(size_t members) {
  constexpr size_t kUsualMembers = 128;
  constexpr Duration kPerMember = std::chrono::milliseconds(6);
  return members <= kUsualMembers ? kShortestHeartbeat : static_cast<Duration::rep>(members) * kPerMember;
}

/// The stream of pings of one member.
/// Threads  One thread at a time.
class HeartbeatStream {
 public:
  /// Called once for each ask(), from any thread. True: the reply has arrived. False: the stream has ended, and
  /// finish() has the cause.
  using Answered = std::function<void(bool)>;

  /// Ends the stream. No call of Answered runs or follows.
  virtual ~HeartbeatStream() = default;
  /// Sends a ping, and does not wait. Both messages stay until the call of Answered. One ping at a time.
  virtual void ask(const proto::Ping& ping, proto::HeartbeatReply& reply, Answered answered) = 0;
  /// The cause of the end, after an Answered with false.
  virtual grpc::Status finish() = 0;
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
  /// The first ask() opens the stream. Its opening names the member, so that a loss before the first ping is detected
  /// as well. The channel outlives it.
  virtual std::unique_ptr<HeartbeatStream> heartbeat(const proto::Member& member) = 0;
};

/// Opens connections to control planes: over gRPC (ps/admission/grpc_channel.h), or in a simulation.
/// Threads  Any thread.
class ControlDialer {
 public:
  virtual ~ControlDialer() = default;
  /// Errors  UNAVAILABLE, DEADLINE_EXCEEDED: no task answers at this address. Others are final.
  virtual absl::StatusOr<std::unique_ptr<ControlChannel>> open(const std::string& address, Duration timeout) = 0;
  /// Checks the packet size after a call without an answer. FAILED_PRECONDITION: small packets reach this address, and
  /// large ones do not.
  virtual absl::Status check_packet_size(const std::string&, Duration) { return absl::OkStatus(); }
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
