#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/rate_limited_log.h"
#include "transport/common/completion_queue.h"
#include "transport/common/message_buffers.h"
#include "transport/common/region_table.h"
#include "transport/context.h"
#include "transport/registry.h"
#include "transport/tcp/event_source.h"
#include "transport/tcp/lingering_close.h"
#include "transport/tcp/seal/sealed_stream.h"
#include "transport/tcp/socket.h"

struct epoll_event;

namespace gradrail::transport::tcp {

class TcpConnection;

/// Limits that tests change.
struct Tuning {
  /// An accepted connection without a hello is closed then. With encryption the peer has to poll before its hello, and
  /// its thread may compute or wait for a core.
  Duration hello_timeout = std::chrono::seconds(10);
  Duration rate_limited_log_interval = std::chrono::seconds(10);
  size_t max_pending_connections = 256;  ///< accepted connections without a hello; beyond, the oldest is closed
  /// 4,096 workers, and 256 that change their connections.
  size_t max_connections = 4096 + 256;
  /// Agreements on keys with peers that are not authenticated yet. Each takes about 0.15 ms, so that a flood delays the
  /// open connections by less than 1 ms in each poll.
  size_t max_agreements_per_poll = 4;
  SocketOptions socket;
  uint64_t records_per_key = seal::kRecordsPerKey;
};

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);
absl::StatusOr<std::unique_ptr<Context>> open_tuned(const OpenOptions& options, const Tuning& tuning);

/// An address at which a context accepts peers.
struct Listener final : EventSource {
  Listener(FileDescriptor socket, std::string address, uint64_t listener_index)
      : EventSource(Kind::listener), fd(std::move(socket)), text(std::move(address)), index(listener_index) {}
  const FileDescriptor fd;
  const std::string text;
  const uint64_t index;  ///< sorted by listen()
};

/// The transport that needs only a network: sockets under epoll, payloads read straight into their region.
/// Invariants  1. Every open connection is in connections_, every accepted one before its hello in
///             pending_connections_.
///             2. Objects dropped while events are handled stay in to_reap_ until the poll ends: later events of the
///                same batch may still point to them.
///             3. A completion of a connection is in ready_ only while the connection is not closed.
class TcpContext final : public Context {
 public:
  TcpContext(std::vector<Address> sources, const Tuning& tuning, std::optional<Encryption> encryption,
             FileDescriptor epoll, FileDescriptor timer);
  ~TcpContext() override;

  std::string_view name() const override { return "tcp"; }
  Capabilities capabilities() const override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override;
  absl::StatusOr<std::string> listen(const std::string& address) override;
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override;
  void close(Connection* connection) override;
  size_t poll(absl::Span<Completion> out) override;
  int wait_fd() const override { return epoll_.get(); }
  bool arm() override;

  // Connections use these functions.
  common::RegionTable& regions() { return regions_; }
  common::MessageBuffers& buffers() { return buffers_; }
  /// `body` is the memory of completion.message.
  void report(Completion completion, common::MessageBuffer body = nullptr) {
    GRADRAIL_CHECK(completion.connection != nullptr);
    ready_.push(std::move(completion), std::move(body));
  }
  bool has_room() const { return ready_.size() < room_; }
  /// Lists a connection with data that the next poll should send.
  void flush_later(TcpConnection* connection);
  /// Frames are received and wait for room.
  void read_later(TcpConnection* connection);
  void stopped_before_dry() { more_to_read_ = true; }
  bool may_agree() const { return agreed_count_ < tuning_.max_agreements_per_poll; }
  void count_agreement() { ++agreed_count_; }
  void watch(int fd, EventSource* source, bool writable_too);
  void unwatch(int fd);
  void count_blocked(int change) {
    blocked_count_ += change;
    GRADRAIL_CHECK(blocked_count_ >= 0);
  }
  void close_lingering(FileDescriptor fd, std::string final_bytes);
  void on_handshake_done(TcpConnection* pending);
  void close_pending(TcpConnection* pending, std::string_view why);

  /// The log for lines about peers that have proven nothing to the owner.
  RateLimitedLog& rate_limited_log() { return rate_limited_log_; }

 private:
  // context.cc
  absl::StatusOr<FileDescriptor> connect_any(const std::vector<Address>& targets, TimePoint deadline);
  const Address* source_for(int family) const;
  absl::Status check_encryption(const std::string& address, bool peer_encrypts) const;

  // context_progress.cc
  void progress();
  void read_pending();
  void flush_pending();
  void poll_directly();
  void poll_events();
  void handle(const epoll_event& event);

  // context_accept.cc
  void accept_some(const Listener& listener);
  void adopt(FileDescriptor fd, const Listener& listener);
  void pause_accepting(const Listener& listener, int error);
  void on_timer();
  void check_alive(TimePoint now);
  void watch_peers();
  Duration check_interval() const { return tuning_.socket.vanish_timeout / 4; }
  void schedule(TimePoint when);
  void progress_lingering_close(LingeringClose* lingering_close);
  std::unique_ptr<TcpConnection> take_pending(TcpConnection* pending);

  // Set once.
  const std::vector<Address> sources_;
  const Tuning tuning_;
  const std::optional<seal::StreamOptions> seal_;   ///< absent: data is not encrypted
  const std::optional<seal::KeyPair> static_pair_;  ///< keys of the listener; erased with the context
  const FileDescriptor epoll_;
  const FileDescriptor timer_;
  EventSource timer_source_{EventSource::Kind::timer};

  // Owner thread.
  std::vector<std::unique_ptr<Listener>> listeners_;
  common::RegionTable regions_;
  std::vector<std::unique_ptr<TcpConnection>> connections_;
  std::deque<std::unique_ptr<TcpConnection>> pending_connections_;  ///< oldest first
  std::vector<std::unique_ptr<TcpConnection>> to_reap_;
  std::deque<std::unique_ptr<LingeringClose>> lingering_closes_;  ///< oldest first
  std::vector<std::unique_ptr<LingeringClose>> lingering_closes_to_reap_;
  RateLimitedLog rate_limited_log_;

  common::CompletionQueue<common::MessageBuffer> ready_;
  size_t room_ = 0;  ///< reading stops at so many entries of ready_: the caller's span
  common::MessageBuffers buffers_;

  std::vector<TcpConnection*> to_flush_;
  std::vector<TcpConnection*> to_read_;
  int blocked_count_ = 0;  ///< connections that wait for EPOLLOUT
  bool more_to_read_ = false;
  size_t agreed_count_ = 0;  ///< number of agreements in this poll
  bool armed_ = false;
  bool accepting_paused_ = false;
  TimePoint next_timer_ = TimePoint::max();
  TimePoint next_check_ = TimePoint::max();  ///< time of the check for vanished hosts, while there are connections
  uint32_t turn_ = 0;
};

}  // namespace gradrail::transport::tcp
