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

/// What libfabric gets as the context of an operation, and gives back with its completion. The context comes first:
/// some providers keep their own data in it.
struct Operation {
  enum class Kind : uint8_t { put, get, send, receive };
  fi_context2 context{};
  Kind kind = Kind::put;
  uint32_t slot = 0;  ///< of whoever posted it
};

/// One connection's endpoint with a completion queue and an address table of its own: that tells whose completion it
/// is without spending bits of the immediate, and closing it ends all that is under way for this peer and no other.
class Endpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Endpoint>> open(Domain& domain);

  /// Errors  INVALID_ARGUMENT: the provider does not know what to do with it.
  absl::Status set_peer(std::string_view address);
  const std::string& address() const { return address_; }

  fid_ep* fid() const { return endpoint_.get(); }
  fid_cq* queue() const { return queue_.get(); }
  fi_addr_t peer() const { return peer_; }
  /// -1 where the provider has none.
  int wait_fd() const { return wait_fd_; }

  /// "put", "get" … with what the provider says of the failure in front of the queue.
  struct Failure {
    int error = 0;
    Operation* operation = nullptr;
    std::string detail;
  };
  Failure read_failure() const;

 private:
  Endpoint() = default;
  absl::Status open_queue(Domain& domain);
  absl::Status open_addresses(Domain& domain);
  absl::Status start();

  Handle<fid_av> addresses_;
  Handle<fid_cq> queue_;
  Handle<fid_ep> endpoint_;  // the first to be closed
  std::string address_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  int wait_fd_ = -1;
};

}  // namespace gradrail::transport::ofi
