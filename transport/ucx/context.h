#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/context.h"
#include "transport/registry.h"
#include "transport/tcp/socket.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/memory_region.h"
#include "transport/ucx/operation.h"
#include "transport/ucx/worker.h"

namespace gradrail::transport::ucx {

absl::StatusOr<std::unique_ptr<Context>> open(const OpenOptions& options);

/// UCX: RDMA where there is a device, shared memory and sockets elsewhere.
///
/// All data travels as active messages. A put names a region of the peer. The peer's worker checks it and receives the
/// bytes straight into the region. Small puts arrive in the message. Bulk arrives by rendezvous, which is an RDMA read
/// on the devices. So no peer holds a device key that permits remote writes. A notice follows its data without a fence;
/// bench/results holds the comparison with put and fence.
///
/// Invariants  1. Every connection is in connections_ at its own number until close(). A connection that was never
///             reported to its owner stays until it ended.
///             2. A completion of a connection is in ready_ only while the connection is not closed.
///             3. Connections are closed and reaped only between two turns of UCX's progress, never within.
class UcxContext final : public Context {
 public:
  UcxContext(Worker worker, std::unique_ptr<Context> side_channels, tcp::Fd epoll, std::string worker_address);
  ~UcxContext() override;
  absl::Status start();

  std::string_view name() const override { return "ucx"; }
  Capabilities capabilities() const override;
  absl::StatusOr<std::unique_ptr<MemoryRegion>> register_memory(MemorySpan memory, Access access) override;
  absl::StatusOr<std::string> listen(const std::string& address) override;
  absl::StatusOr<Connection*> connect(const std::string& address, TimePoint deadline) override;
  void close(Connection* connection) override;
  size_t poll(absl::Span<Completion> out) override;
  int wait_fd() const override { return epoll_.get(); }
  bool arm() override;

  // For connections.
  ucp_worker_h worker() const { return worker_.get(); }
  RegionTable& regions() { return regions_; }
  Handshake handshake_for(const UcxConnection& connection) const;
  size_t max_frame_bytes() const { return side_channels_->capabilities().max_message_bytes; }
  void introduce(UcxConnection* pending);
  void report(Completion completion, MessageBuffer body = nullptr);
  MessageBuffer take_buffer();
  void recycle(MessageBuffer buffer);
  void end_soon(UcxConnection* connection) { failing_.push_back(connection); }
  void confirm_alive_soon(UcxConnection* connection);
  void close_side_channel(Connection* side_channel) { side_channels_->close(side_channel); }

 private:
  struct Ready {
    Completion completion;
    MessageBuffer body;
  };

  // context_handshake.cc
  absl::StatusOr<UcxConnection*> adopt(Connection* side_channel, UcxConnection::Side side);
  void await_path(const UcxConnection& connection, TimePoint deadline);
  void poll_side_channels();
  void on_side_channel(const Completion& event);
  void close_silent_pending(TimePoint now);
  void remove(UcxConnection* connection);

  void leak_abandoned();

  // context_progress.cc
  void progress();
  void progress_worker();
  void take_last_messages();
  void confirm_alive();
  void end_failed();
  void reap_ended();
  bool side_channels_due();
  size_t take(absl::Span<Completion> out);
  void finish(UcxConnection* connection);
  void region_ends(const Region& region);
  static ucs_status_t on_message(void* context, const void* header, size_t header_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param);
  UcxConnection* find(const Header& header) const;

  // Set once. Order of destruction: connections, regions' table, UCX, side channels.
  const std::unique_ptr<Context> side_channels_;
  Worker worker_;
  const tcp::Fd epoll_;
  const std::string worker_address_;
  const uint64_t id_;

  // Owner thread.
  RegionTable regions_;
  std::vector<std::unique_ptr<UcxConnection>> connections_;  ///< by number; null where free
  size_t pending_connections_ = 0;                           ///< accepted connections that have not greeted
  std::vector<Connection*> unwanted_;                        ///< side channels to close
  std::vector<UcxConnection*> failing_;
  std::vector<UcxConnection*> ending_;
  std::vector<UcxConnection*> to_confirm_alive_;
  std::vector<std::unique_ptr<UcxConnection>> abandoned_;  ///< closed by their owners, not by UCX

  std::vector<Ready> ready_;  ///< from next_ready_ on
  size_t next_ready_ = 0;
  std::vector<MessageBuffer> delivered_;
  std::vector<MessageBuffer> free_buffers_;

  bool armed_ = true;  ///< the first poll looks everywhere
  uint32_t turn_ = 0;
  TimePoint side_channels_polled_at_{};
};

}  // namespace gradrail::transport::ucx
