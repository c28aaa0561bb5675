#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/ofi/domain.h"
#include "transport/ofi/handle.h"

namespace gradrail::transport::ofi {

/// The context of an operation for libfabric, which returns it with the completion. The fid context is the first
/// member: some providers keep their own data in it.
struct Operation {
  enum class Kind : uint8_t { put, get, send, receive };
  fi_context2 context{};
  Kind kind = Kind::put;
  uint32_t slot = 0;  ///< slot of the object that posted it
};

/// The endpoint of a connection with its own completion queue and address table. The queue identifies the connection of
/// a completion without bits of the immediate. Closing the endpoint ends all transfers of this peer and of no other.
class Endpoint {
 public:
  /// Opens an endpoint. `accepts`: where endpoints connect, this one waits for its peer. Others are ready for receives
  /// immediately.
  static absl::StatusOr<std::unique_ptr<Endpoint>> open(fid_fabric* fabric, Domain& domain, bool accepts);

  /// Address for the peer. It is a placeholder if endpoints connect and this one does not accept.
  const std::string& address() const { return address_; }
  /// Sets the address of the peer.
  /// Errors  INVALID_ARGUMENT: the provider cannot interpret it.
  absl::Status set_peer(std::string_view address);

  // Order where endpoints connect: the connecting side makes its endpoint, posts receives and connects. The accepting
  // side does so when next_event() reports a connection request.
  absl::Status make(std::string_view peer_address);
  absl::Status connect(uint64_t token);
  absl::Status accept();
  enum class Event { none, asked, connected };
  /// Takes the next event. `asked`: a peer that holds the token connects, and the endpoint for it is made.
  absl::StatusOr<Event> next_event(uint64_t token);
  bool connected() const { return connected_; }

  /// Whether the provider would copy GPU memory through the host, which would pass for GPUDirect. Providers without any
  /// other way than the device's, such as verbs, do not support the query.
  bool refuses_peer_to_peer() const { return refuses_peer_to_peer_; }

  fid_ep* fid() const { return endpoint_.get(); }
  fid_cq* queue() const { return queue_.get(); }
  fi_addr_t peer() const { return peer_; }
  /// -1 where the provider has none.
  int wait_fd() const { return wait_fd_; }
  int event_fd() const { return event_fd_; }

  /// The provider's text about the failure at the head of the queue.
  struct Failure {
    int error = 0;
    Operation* operation = nullptr;
    std::string detail;
  };
  Failure read_failure() const;

 private:
  explicit Endpoint(Domain& domain) : domain_(domain) {}
  absl::Status open_queue();
  absl::Status open_addresses();
  absl::Status open_events(fid_fabric* fabric, bool accepts);
  absl::Status listen(fid_fabric* fabric);
  absl::Status make_from(fi_info* info);
  void require_peer_to_peer();
  absl::Status name_after(struct fid* object);

  Domain& domain_;
  Handle<fid_av> addresses_;
  Handle<fid_cq> queue_;
  Handle<fid_eq> events_;
  Handle<fid_pep> listener_;
  Handle<fid_ep> endpoint_;  // the first to be closed
  std::string address_;
  std::string peer_address_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  bool connected_ = false;
  bool refuses_peer_to_peer_ = false;
  int wait_fd_ = -1;
  int event_fd_ = -1;
};

}  // namespace gradrail::transport::ofi
