#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "transport/ofi/domain.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/message_channel.h"

namespace gradrail::transport::ofi {

/// All that libfabric holds of one connection, and the memory that it may write to: it can outlive the connection
/// (OfiContext::defer_close).
class Link {
 public:
  /// `own` is the connection's own domain, or null: then it is in `default_domain`.
  static absl::StatusOr<std::unique_ptr<Link>> open(fid_fabric* fabric, Domain& default_domain,
                                                    std::unique_ptr<Domain> own, bool accepts);

  /// Begins to reach the endpoint that the peer has named, or to wait for it. `token` is the peer's.
  absl::Status set_peer(std::string_view address, uint64_t token);
  /// Continues the connection.
  absl::Status progress_connecting();
  bool connected() const { return endpoint_->connected(); }

  Domain& domain() const { return *domain_; }
  bool has_own_domain() const { return own_domain_ != nullptr; }
  Endpoint& endpoint() const { return *endpoint_; }
  MessageChannel& messages() { return messages_; }
  void* message_descriptor() const { return message_memory_.descriptor; }
  std::byte* mailbox() { return mailbox_; }
  const Registration& mailbox_memory() const { return mailbox_memory_; }

  /// Discards all arrivals.
  void drain() const;
  /// Closes everything. The memory stays, with messages that the owner has not read yet.
  void shut();

 private:
  explicit Link(bool accepts) : accepts_(accepts) {}

  absl::Status start();

  const bool accepts_;

  // The order of declaration is the reverse of the order in which libfabric allows them to be closed.
  std::unique_ptr<Domain> own_domain_;
  Domain* domain_ = nullptr;
  MessageChannel messages_;
  alignas(64) std::byte mailbox_[64] = {};
  Registration message_memory_;
  Registration mailbox_memory_;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace gradrail::transport::ofi
