#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "gradrail/clock.h"
#include "transport/common/path_watch.h"
#include "transport/common/side_channel.h"
#include "transport/connection.h"
#include "transport/ofi/handshake.h"
#include "transport/ofi/imports.h"
#include "transport/ofi/link.h"
#include "transport/ofi/transfers.h"

namespace gradrail::transport::ofi {

class OfiContext;

/// A peer: an endpoint of libfabric for the bytes, and beside it the side channel. The side channel is a tcp connection
/// for the handshake, the opening of regions and the reason of a disconnect.
/// Invariants  1. link_ exists from the first hello of either side until the connection is lost.
///             2. peer_lost is reported once, after all earlier arrivals; a pending connection (accepted, no hello yet)
///                reports nothing.
class OfiConnection final : public Connection, private common::SideChannelUser {
 public:
  using Side = common::SideChannel::Side;
  /// `deadline` is for the peer's hello.
  OfiConnection(OfiContext& context, Connection* side_channel, Side side, TimePoint deadline);
  ~OfiConnection() override;

  // Connection.
  absl::StatusOr<RemoteRegion> import(std::string_view key) override;
  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override;
  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override;
  absl::Status send(absl::Span<const std::byte> message) override;
  absl::StatusOr<std::byte*> map(RemoteRegion region) override;
  std::string describe() const override { return name_; }
  std::string path() const override;
  bool uses_rdma() const override;

  // The context uses these functions during the set-up.
  /// Opens the endpoint and sends the hello.
  absl::Status start_handshake();
  void check_deadline(TimePoint now);
  /// Called now and then. Closes a connection if its device finishes nothing any more. The device repeats its transfers
  /// itself, and some settings repeat for ever (rdma_rxe interprets libfabric's count so).
  void check_silence(TimePoint now);
  bool awaits_acknowledgement() const { return uses_rdma() && transfers_.under_way(); }
  /// Reports the cause to the peer, ends everything under way and reports peer_lost.
  void lose(absl::Status cause);
  /// Greeted, and libfabric has its own connection: what is posted leaves without waiting for another poll.
  bool ready() const { return state_ == State::open && link_->messages().idle(); }
  bool lost() const { return state_ == State::lost; }
  const common::SideChannel& side_channel() const { return side_channel_; }
  bool waits_for_hello() const { return state_ == State::pending || state_ == State::handshake; }
  const absl::Status& cause() const { return cause_; }  ///< cause of the loss

  // The context uses these functions on the data path.
  void progress();
  void release_message(uint32_t slot);
  /// -1: none, or no endpoint.
  int wait_fd() const { return link_ == nullptr ? -1 : link_->endpoint().wait_fd(); }
  fid_cq* queue() const { return link_ == nullptr ? nullptr : link_->endpoint().queue(); }
  /// Whether an operation waits that the provider did not take, and no completion will announce when it can.
  bool stuck() const;

 private:
  enum class State : uint8_t {
    pending,    ///< accepted, no hello yet
    handshake,  ///< connected, hello sent, no answer yet
    open,
    lost
  };

  // common::SideChannelUser.
  void on_side_channel_message(std::string_view message) override;
  void on_side_channel_lost(const absl::Status& cause) override;
  void on_side_channel_misused() override;

  // connection.cc
  absl::Status open_link();
  absl::Status handle_control_message(const ControlMessage& message);
  absl::Status handle_hello(const EndpointHello& hello);
  absl::Status answer(const Request& request);
  absl::Status handle_grant(const Grant& grant);
  EndpointHello own_hello() const;
  void release_link();

  // connection_datapath.cc
  absl::Status lost_error() const;
  absl::Status pump();
  absl::Status pump_or_lose();
  void progress_connecting();
  bool read_queue();
  absl::Status handle(const fi_cq_data_entry& entry);
  absl::Status handle_received(const Operation& operation, size_t bytes);
  absl::Status failure();
  void report_done(Completion::Kind kind, uint64_t tag);

  // Set once.
  OfiContext& context_;
  // Owner thread.
  common::SideChannel side_channel_;
  const std::string name_;
  State state_;
  std::unique_ptr<Link> link_;
  /// The former link_ after the connection was lost: holds messages to be delivered. Shared with the context, where it
  /// may outlive the connection.
  std::shared_ptr<Link> retired_;
  Imports imports_;
  Transfers transfers_;
  common::PathWatch watch_;
  absl::Status cause_;
  bool prepared_ = false;
};

}  // namespace gradrail::transport::ofi
