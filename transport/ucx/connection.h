#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <bitset>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "transport/common/imported_regions.h"
#include "transport/connection.h"
#include "transport/ucx/arrivals.h"
#include "transport/ucx/handshake.h"
#include "transport/ucx/lanes.h"
#include "transport/ucx/memory_region.h"
#include "transport/ucx/operation.h"
#include "transport/ucx/wire.h"

namespace gradrail::transport::ucx {

class UcxContext;

/// A UCX endpoint, and beside it the tcp connection for the handshake, loss detection and disconnect messages.
/// Invariants  1. Only this side's worker writes to this side's regions, and only where RegionTable agreed.
///             2. peer_lost is reported once, and not before UCX has released all resources of this connection.
///             3. Nothing is closed while a UCX callback runs: fail() only marks, the context closes afterwards.
class UcxConnection final : public Connection {
 public:
  enum class Side { connected, accepted };
  enum class State : uint8_t {
    handshake,  ///< no endpoint yet; unknown to the owner unless it connects, and then its messages wait
    open,
    failing,  ///< to be ended as soon as no callback of UCX's runs
    ending,   ///< the endpoint is closed; UCX still lets go
    lost
  };

  UcxConnection(UcxContext& context, Side side, uint32_t number, Connection* side_channel,
                TimePoint handshake_deadline);
  ~UcxConnection() override;

  // Connection.
  absl::StatusOr<RemoteRegion> import(std::string_view key) override;
  absl::Status put(LocalSlice source, RemoteSlice target, PutOptions options) override;
  absl::Status get(LocalSlice target, RemoteSlice source, uint64_t tag) override;
  absl::Status send(absl::Span<const std::byte> message) override;
  absl::StatusOr<std::byte*> map(RemoteRegion region) override;
  std::string describe() const override;
  std::string path() const override { return "ucx " + lanes_.text; }
  bool uses_rdma() const override { return lanes_.rdma; }

  // For the context: set-up and end (connection.cc).
  State state() const { return state_; }
  Side side() const { return side_; }
  uint32_t number() const { return number_; }
  uint64_t token() const { return token_; }
  const absl::Status& cause() const { return cause_; }
  TimePoint handshake_deadline() const { return handshake_deadline_; }
  absl::Status start_handshake();
  void on_side_channel_message(std::string_view frame);
  void side_channel_lost(const absl::Status& why);
  /// Whether its owner has been given it: by connect(), or as connected when the path is proven.
  bool known_to_owner() const { return introduced_ || side_ == Side::connected; }
  /// Whether both directions have been used.
  bool proven() const { return peer_said_hello_ && hello_sent_; }
  /// Ends the connection for this reason, soon; the first reason counts.
  void fail(absl::Status cause);
  /// UCX 1.13 aborts the process when an endpoint is closed before its wire-up messages are out. The cause is an
  /// assertion in ucp_request_send_state_ff that newer releases do not have. Such an endpoint is abandoned. It holds no
  /// resources of the owner and waits for the end of its wire-up, if necessary until the process ends.
  bool closable() const { return endpoint_ == nullptr || hello_sent_; }
  bool abandoned() const { return state_ >= State::ending && !closable(); }
  /// Whether an abandoned connection has ended.
  bool try_release();
  /// Not in a callback of UCX's. Says last words and closes the endpoint.
  void begin_end();
  /// Ends it because the owner wants so: no words, no report.
  void leave();
  /// Whether UCX holds nothing of this connection any more and nothing better than cause() is to be heard.
  bool ended(TimePoint now);
  bool released() const;
  /// The rest, after which nothing remains but cause().
  void reap();
  /// Whether UCX reads from or writes to this region for the peer.
  bool serves_from(const Region& region);

  // For the context: what arrives (connection_arrival.cc).
  ucs_status_t arrived(const Header& header, void* data, size_t bytes, const ucp_am_recv_param_t& param);
  /// The side channel was alive after the last bulk had come.
  void confirm_alive();

 private:
  /// A message of the owner's that waits for the peer's handshake.
  struct EarlyMessage {
    Operation* operation = nullptr;
    size_t bytes = 0;
  };

  // connection.cc
  void handshake_complete();
  absl::Status open_endpoint(const Handshake& peer);
  void say(FrameKind kind, std::string_view text);
  void close_endpoint();
  void drop_held();
  static void endpoint_failed(void* connection, ucp_ep_h endpoint, ucs_status_t status);

  // connection_datapath.cc
  absl::Status check_post() const;
  absl::StatusOr<const RegionKey*> remote(RemoteSlice slice, uint64_t bytes, Access wanted) const;
  bool put_window_full() const { return next_put_ - oldest_put_ == kPutWindow; }
  void put_sent(uint32_t sequence);
  absl::Status full() const;
  Header header_of(MessageKind kind) const;
  absl::Status post(Operation* operation, const Header& header, const std::byte* data, size_t bytes,
                    const Region* region, bool by_rendezvous = false);
  void sent(Operation* operation, ucs_status_t status);
  void give_back(Operation* operation);
  absl::Status post_message(Operation* operation, size_t bytes);
  void post_hello();
  void post_early_messages();
  PendingGet* free_get();
  static void on_sent(void* request, ucs_status_t status, void* operation);

  // connection_arrival.cc
  ucs_status_t refuse(const absl::Status& why);
  void introduce();
  ucs_status_t put_arrives(const Header& header, void* data, size_t bytes, const ucp_am_recv_param_t& param);
  ucs_status_t hold(Arrival& arrival, void* data, const ucp_am_recv_param_t& param);
  void start(Arrival& arrival, void* data);
  void moved(Arrival& arrival);
  void announce();
  void announce(uint64_t immediate);
  void start_waiting();
  ucs_status_t message_arrives(const Header& header, const void* data, size_t bytes, bool rendezvous);
  ucs_status_t get_request_arrives(const Header& header);
  void answer_early_requests();
  ucs_status_t get_data_arrives(const Header& header, void* data, size_t bytes, bool rendezvous);
  void get_moved(PendingGet& get);
  void get_done(PendingGet& get);
  ucs_status_ptr_t receive(void* descriptor, std::byte* target, size_t bytes, const Region& region,
                           ucp_am_recv_data_nbx_callback_t callback, void* user_data);
  static void on_put_moved(void* request, ucs_status_t status, size_t bytes, void* arrival);
  static void on_get_moved(void* request, ucs_status_t status, size_t bytes, void* get);

  // Set once.
  UcxContext& context_;
  const Side side_;
  const uint32_t number_;
  const uint64_t token_;
  const TimePoint handshake_deadline_;
  std::string ends_;  ///< "10.0.0.2:40112 > 10.0.0.1:2223"
  Handshake peer_;

  // Owner thread.
  State state_ = State::handshake;
  Connection* side_channel_;
  std::string handshake_text_;
  absl::Status cause_;
  bool hello_sent_ = false;
  bool peer_said_hello_ = false;
  bool introduced_ = false;
  bool received_disconnect_ = false;
  TimePoint end_deadline_{};
  TimePoint disconnect_deadline_{};
  ucp_ep_h endpoint_ = nullptr;
  Lanes lanes_{.text = "(not connected yet)", .rdma = false};  ///< as they were chosen, and again once wired up
  void* close_request_ = nullptr;
  common::ImportedRegions<RegionKey> imported_;

  OperationPool operations_;
  OperationPool answers_;
  size_t receiving_ = 0;  ///< receives that UCX has not finished
  uint32_t next_put_ = 0;
  uint32_t oldest_put_ = 0;  ///< that UCX has not finished
  std::bitset<kPutWindow> put_done_;
  uint32_t next_message_ = 0;
  std::array<PendingGet, kMaxGets> gets_;
  uint64_t next_get_ = 0;

  uint32_t next_put_arrival_ = 0;
  uint32_t next_message_arrival_ = 0;
  Arrivals arrivals_;
  std::vector<EarlyMessage> early_messages_;
  std::vector<Header> early_requests_;  ///< gets of a peer that was ready before us
};

}  // namespace gradrail::transport::ucx
