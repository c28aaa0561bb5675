#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/rate_limited_log.h"
#include "transport/context.h"
#include "transport/registry.h"
#include "transport/shm/connection.h"

namespace gradrail::transport::shm {

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);

/// Peers on one host. Posts copy into the peer's memory and publish a ring entry. Only a sleeping peer costs a system
/// call. The sockets are checked about once a millisecond while spinning.
class ShmContext final : public Context {
 public:
  static absl::StatusOr<std::unique_ptr<Context>> create();
  ~ShmContext() override;

  std::string_view name() const override { return "shm"; }
  Capabilities capabilities() const override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override;
  absl::StatusOr<std::string> listen(const std::string& address) override;
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override;
  void close(Connection* connection) override;
  size_t poll(absl::Span<Completion> out) override;
  int wait_fd() const override { return epoll_.get(); }
  bool arm() override;

 private:
  /// An accepted socket that has not sent a hello yet.
  struct PendingConnection {
    ControlChannel channel;
    pid_t pid = 0;
    TimePoint accepted;
  };

  ShmContext(FileDescriptor epoll, FileDescriptor bell) : epoll_(std::move(epoll)), bell_(std::move(bell)) {}

  bool sockets_due();
  void look_at_sockets();
  void look_at(int fd);
  void disarm();
  absl::Status watch(int fd);

  void accept_peers();
  void admit(FileDescriptor socket);
  void start_handshake(PendingConnection& pending);
  absl::Status welcome(PendingConnection& pending, Packet& hello);
  void drop_silent_pending();
  Connection* add(ConnectionParts parts);

  // Set once.
  FileDescriptor epoll_;  ///< bell, listener, and the socket of each connection
  FileDescriptor bell_;   ///< peers ring it while this side sleeps
  FileDescriptor listener_;
  std::string address_;
  RateLimitedLog rate_limited_log_;

  // Owner thread.
  common::RegionTable regions_;
  std::vector<std::unique_ptr<ShmConnection>> connections_;
  std::unordered_map<int, PendingConnection> pending_connections_;  ///< indexed by socket
  MessageArena arena_;
  size_t next_ = 0;  ///< round robin: no peer starves another
  bool armed_ = false;
  uint32_t polls_since_look_ = 0;
  TimePoint last_look_;
};

}  // namespace gradrail::transport::shm
