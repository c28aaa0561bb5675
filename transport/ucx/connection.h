#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "gradrail/clock.h"
#include "transport/common/imported_regions.h"
#include "transport/common/side_channel.h"
#include "transport/connection.h"
#include "transport/ucx/endpoint.h"
#include "transport/ucx/handshake.h"
#include "transport/ucx/memory_region.h"
#include "transport/ucx/pending_gets.h"
#include "transport/ucx/put_receiver.h"
#include "transport/ucx/sender.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {

class UcxContext;

/// A UCX endpoint with its side channel. Sender, PutReceiver and PendingGets move the data; this class opens and ends.
/// Invariants  1. Only this side's worker writes to this side's regions, and only where RegionTable agreed.
///             2. peer_lost is reported once, and not before UCX has released all resources of this connection.
///             3. Nothing is closed while a UCX callback runs: fail() only marks, the context closes afterwards.
class UcxConnection final : public Connection, private common::SideChannelUser {
 public:
  using Side = common::SideChannel::Side;
  enum class State : uint8_t {
    handshake,  ///< no endpoint yet; unknown to the owner unless it connects, and then its messages wait
    open,
    failing,  ///< ends as soon as no callback of UCX's runs
    ending,   ///< the endpoint is closed; UCX still releases memory
    lost
  };

  UcxConnection(UcxContext& context, Side side, uint32_t number, Connection* side_channel, TimePoint deadline);

  // Connection.
  absl::StatusOr<RemoteRegion> import(std::string_view key) override;
  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override;
  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override;
  absl::Status send(absl::Span<const std::byte> message) override;
  absl::StatusOr<std::byte*> map(RemoteRegion region) override;
  std::string describe() const override;
  std::string path() const override { return "ucx " + endpoint_.lanes().text; }
  bool uses_rdma() const override { return endpoint_.lanes().rdma; }

  // The context uses these functions.
  State state() const { return state_; }
  uint32_t number() const { return number_; }
  uint64_t token() const { return token_; }
  const absl::Status& cause() const { return cause_; }
  const common::SideChannel& side_channel() const { return side_channel_; }
  absl::Status start_handshake();
  /// Whether both directions have been used.
  bool proven() const { return peer_said_hello_ && sender_.hello_sent(); }
  ucs_status_t arrived(const Header& header, void* data, size_t bytes, const ucp_am_recv_param_t& param);
  /// Records that the side channel answered after the last bulk data had arrived.
  void confirm_alive();
  /// Whether UCX reads from or writes to this region for the peer.
  bool serves_from(const Region& region);

  // The context uses these functions for the end.
  /// Ends the connection for this reason, soon; the first reason counts.
  void fail(absl::Status cause);
  /// An endpoint is abandoned when UCX 1.13 would abort the process on its close: before its wire-up messages are out.
  /// The cause is an assertion in ucp_request_send_state_ff that newer releases do not have. Such an endpoint holds no
  /// resources of the owner and waits for the end of its wire-up, if necessary until the process ends.
  bool abandoned() const { return state_ >= State::ending && !closable(); }
  /// Whether an abandoned connection has ended.
  bool try_release();
  /// Closes the endpoint; not called in a callback of UCX's.
  void begin_end();
  /// Ends the connection on request of the owner, without a message to the peer and without a report.
  void leave();
  /// Whether UCX holds nothing of this connection any more and no better cause can arrive.
  bool ended(TimePoint now) const;
  bool released() const;
  /// Frees the rest. Only cause() remains.
  void reap();

  // The parts of a connection use these functions.
  ucp_ep_h endpoint() const { return endpoint_.get(); }
  const Handshake& peer() const { return peer_; }
  void on_hello_sent();
  void fail_native(std::string_view doing, ucs_status_t status);
  /// Ends the connection with a peer that violates the protocol. The answer to UCX.
  ucs_status_t refuse(const absl::Status& why);

 private:
  // common::SideChannelUser.
  void on_side_channel_message(std::string_view frame) override;
  void on_side_channel_lost(const absl::Status& cause) override;
  void on_side_channel_misused() override;

  void handshake_complete();
  ucs_status_t message_arrived(const Header& header, const void* data, size_t bytes, bool rendezvous);
  void introduce();
  void send_reason(FrameKind kind);
  bool closable() const { return endpoint_.get() == nullptr || sender_.hello_sent(); }
  void close_endpoint();
  static void endpoint_failed(void* connection, ucp_ep_h endpoint, ucs_status_t status);

  absl::Status check_post() const;
  absl::StatusOr<const RegionKey*> remote(RemoteSlice slice, uint64_t bytes, Access wanted) const;

  // Set once.
  UcxContext& context_;
  const uint32_t number_;
  const uint64_t token_;
  Handshake peer_;

  // Owner thread.
  State state_ = State::handshake;
  common::SideChannel side_channel_;
  std::string handshake_text_;
  absl::Status cause_;
  bool peer_said_hello_ = false;
  uint32_t next_message_ = 0;  ///< number of the next message to arrive
  bool received_disconnect_ = false;
  TimePoint end_deadline_{};
  TimePoint disconnect_deadline_{};
  Endpoint endpoint_;
  common::ImportedRegions<RegionKey> imported_;
  Sender sender_;
  PutReceiver puts_;
  PendingGets gets_;
};

}  // namespace gradrail::transport::ucx
