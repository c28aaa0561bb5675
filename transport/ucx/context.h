#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/file_descriptor.h"
#include "base/rate_limited_log.h"
#include "transport/common/completion_queue.h"
#include "transport/common/message_buffers.h"
#include "transport/common/side_channel.h"
#include "transport/context.h"
#include "transport/registry.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/device/worker.h"
#include "transport/ucx/memory_region.h"

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
  UcxContext(Worker worker, std::unique_ptr<Context> side_channels, FileDescriptor epoll, std::string worker_address);
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

  // Connections use these functions.
  ucp_worker_h worker() const { return worker_.get(); }
  RegionTable& regions() { return regions_; }
  common::SideChannels& side_channels() { return side_channels_; }
  common::MessageBuffers& buffers() { return buffers_; }
  Handshake handshake_for(const UcxConnection& connection) const;
  void introduce(UcxConnection* pending);
  /// `body` is the memory of completion.message.
  void report(Completion completion, common::MessageBuffer body = nullptr) {
    GRADRAIL_CHECK(completion.connection != nullptr);
    ready_.push(std::move(completion), std::move(body));
  }
  void end_soon(UcxConnection* connection) { failing_.push_back(connection); }
  void confirm_alive_soon(UcxConnection* connection);
  void take_last_messages();
  /// The log for lines about peers that have proven nothing to the owner.
  RateLimitedLog& rate_limited_log() { return rate_limited_log_; }

 private:
  // context_handshake.cc
  absl::StatusOr<UcxConnection*> adopt(Connection* side_channel, UcxConnection::Side side);
  void await_path(const UcxConnection& connection, TimePoint deadline);
  void poll_side_channels();
  void accept(Connection* side_channel);
  void close_silent_pending(TimePoint now);
  void remove(UcxConnection* connection);

  void leak_abandoned();

  // context_progress.cc
  void progress();
  void progress_worker();
  void confirm_alive();
  void end_failed();
  void reap_ended();
  void finish(UcxConnection* connection);
  void region_ends(const Region& region);
  static ucs_status_t on_message(void* context, const void* header, size_t header_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param);
  UcxConnection* find(const Header& header) const;

  // Set once. Order of destruction: connections, regions' table, UCX, side channels.
  common::SideChannels side_channels_;
  Worker worker_;
  const FileDescriptor epoll_;
  const std::string worker_address_;
  const uint64_t id_;

  // Owner thread.
  RateLimitedLog rate_limited_log_;
  RegionTable regions_;
  std::vector<std::unique_ptr<UcxConnection>> connections_;  ///< indexed by number; null where free
  size_t pending_connections_ = 0;                           ///< accepted connections that have not greeted
  std::vector<UcxConnection*> failing_;
  std::vector<UcxConnection*> ending_;
  std::vector<UcxConnection*> to_confirm_alive_;
  std::vector<std::unique_ptr<UcxConnection>> abandoned_;  ///< closed by their owners, not by UCX

  common::CompletionQueue<common::MessageBuffer> ready_;
  common::MessageBuffers buffers_;
};

}  // namespace gradrail::transport::ucx
