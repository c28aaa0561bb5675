#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gradrail/clock.h"
#include "transport/context.h"

namespace gradrail::transport::common {

class SideChannels;

/// An RDMA connection, which receives the events of its side channel.
class SideChannelUser {
 public:
  virtual void on_side_channel_message(std::string_view message) = 0;
  /// Reports the loss of the peer. The side channel is closed already.
  virtual void on_side_channel_lost(const absl::Status& cause) = 0;
  /// The peer uses the side channel for data.
  virtual void on_side_channel_misused() = 0;

 protected:
  ~SideChannelUser() = default;
};

/// The tcp connection beside one RDMA connection. It carries the handshake and the reason of a disconnect, and detects
/// the loss of the peer.
class SideChannel {
 public:
  enum class Side : uint8_t { connected, accepted };

  /// `user` stays at its place as long as this object exists. `deadline` is that of the handshake.
  SideChannel(SideChannels& all, Connection* connection, Side side, SideChannelUser& user, TimePoint deadline);
  ~SideChannel() { close(); }
  SideChannel(const SideChannel&) = delete;
  SideChannel& operator=(const SideChannel&) = delete;

  bool is_open() const { return connection_ != nullptr; }
  bool accepted() const { return side_ == Side::accepted; }
  TimePoint deadline() const { return deadline_; }
  /// Addresses of both ends: "10.0.0.2:40112 > 10.0.0.1:2223".
  const std::string& ends() const { return ends_; }

  /// Errors  UNAVAILABLE: closed. Otherwise those of Connection::send.
  absl::Status send(std::string_view message);
  void close();

  /// Whether the owner of the context has the RDMA connection: connect() returned it, or it was reported.
  bool introduced() const { return introduced_ || !accepted(); }
  /// Whether an accepted connection must be reported now; true at the first call only.
  bool introduce();

 private:
  friend class SideChannels;

  SideChannels& all_;
  Connection* connection_;
  const Side side_;
  SideChannelUser& user_;
  const TimePoint deadline_;
  const std::string ends_;
  bool introduced_ = false;
};

/// The tcp context beside an RDMA context. It listens and connects for it.
/// Invariant  A connection of the tcp context has a SideChannel, or accept() is deciding about it.
class SideChannels {
 public:
  explicit SideChannels(std::unique_ptr<Context> context) : context_(std::move(context)) {}

  absl::StatusOr<std::string> listen(const std::string& address) { return context_->listen(address); }
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) {
    return context_->connect(address, deadline);
  }
  void close(Connection* connection) { context_->close(connection); }
  size_t max_message_bytes() const { return context_->capabilities().max_message_bytes; }

  /// Handles all events. `accept` gets each new connection and makes its SideChannel, or closes it.
  void poll(const std::function<void(Connection*)>& accept);
  TimePoint polled_at() const { return polled_at_; }
  /// Whether a busy loop polls now. The loop calls it in each turn.
  bool due();

  int wait_fd() const { return context_->wait_fd(); }
  /// Same as Context::arm. The next due() is true, because an event may have ended the wait.
  bool arm();

 private:
  static void dispatch(const Completion& event);

  const std::unique_ptr<Context> context_;
  bool armed_ = true;  ///< the first turn polls
  uint32_t turn_ = 0;
  TimePoint polled_at_{};
};

/// An accepted peer that sends no handshake in this time is closed.
inline constexpr Duration kHandshakeTime = std::chrono::seconds(5);

}  // namespace gradrail::transport::common
