#pragma once

#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transport/shm/unix_socket.h"

namespace gradrail::transport::shm {

/// A connection's Unix socket, watched by the Context's epoll set. Packets without room in the socket wait here. While
/// packets wait, has_backlog() stops the owner from reading further requests, which bounds the backlog.
class ControlChannel {
 public:
  ControlChannel() = default;
  /// `epoll` outlives this.
  ControlChannel(FileDescriptor socket, int epoll);
  ControlChannel(ControlChannel&&) = default;
  ControlChannel& operator=(ControlChannel&&) = default;
  ~ControlChannel() { close(); }

  bool open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }

  absl::Status send(const ControlMessage& message, absl::Span<const int> descriptors);
  absl::StatusOr<Packet> receive() { return receive_packet(socket_.get()); }

  bool has_backlog() const { return !backlog_.empty(); }
  absl::Status send_backlog();

  /// Ends with a last word, as far as the socket takes it.
  void close_with(const absl::Status& why);
  void close();

 private:
  struct Waiting {
    ControlMessage message;
    std::vector<FileDescriptor> descriptors;
  };
  void watch(bool for_writing);

  FileDescriptor socket_;
  int epoll_ = -1;
  std::deque<Waiting> backlog_;
};

}  // namespace gradrail::transport::shm
