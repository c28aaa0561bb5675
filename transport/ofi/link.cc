#include "transport/ofi/link.h"
#include "base/check.h"
#include "base/status.h"

#include <rdma/fi_errno.h>

#include <array>
#include <utility>

namespace gradrail::transport::ofi {

absl::StatusOr<std::unique_ptr<Link>> Link::open(fid_fabric* fabric, Domain& default_domain,
                                                 std::unique_ptr<Domain> own, bool accepts) {
  std::unique_ptr<Link> link(new Link(accepts));
  link->own_domain_ = std::move(own);
  link->domain_ = link->own_domain_ == nullptr ? &default_domain : link->own_domain_.get();
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::open(fabric, *link->domain_, accepts));
  link->endpoint_ = std::move(endpoint);
  GRADRAIL_ASSIGN_OR_RETURN(link->message_memory_, link->domain_->add_messages(link->messages_.slab()));
  GRADRAIL_ASSIGN_OR_RETURN(
      Registration mailbox,
      link->domain_->add({.data = link->mailbox_, .bytes = sizeof(link->mailbox_)}, Access::remote_write));
  link->mailbox_memory_ = std::move(mailbox);
  // The endpoint that takes the receives does not exist yet; set_peer() or progress_connecting() makes it.
  if (link->domain_->provider().connects) return link;
  GRADRAIL_RETURN_IF_ERROR(link->start());
  return link;
}

absl::Status Link::start() { return messages_.start(*endpoint_, message_memory_.descriptor); }

absl::Status Link::set_peer(std::string_view address, uint64_t token) {
  if (!domain_->provider().connects) return endpoint_->set_peer(address);
  if (accepts_) return absl::OkStatus();
  GRADRAIL_RETURN_IF_ERROR(endpoint_->make(address));
  // Receives are posted before the connection, so that an endpoint has a buffer for each message.
  GRADRAIL_RETURN_IF_ERROR(start());
  return endpoint_->connect(token);
}

absl::Status Link::progress_connecting() {
  if (!domain_->provider().connects) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(const Endpoint::Event event, endpoint_->next_event(messages_.token()));
  if (event != Endpoint::Event::asked) return absl::OkStatus();
  GRADRAIL_RETURN_IF_ERROR(start());
  return endpoint_->accept();
}

void Link::drain() const {
  std::array<fi_cq_data_entry, 16> entries;
  while (true) {
    const ssize_t got = fi_cq_read(endpoint_->queue(), entries.data(), entries.size());
    if (got > 0) continue;
    // A failed entry blocks the entries behind it until it is read.
    if (got != -FI_EAVAIL) return;
    endpoint_->read_failure();
  }
}

void Link::shut() {
  GRADRAIL_CHECK(endpoint_ != nullptr);  // a link is shut once
  // libfabric closes no object that another one uses: endpoint, registrations, domain.
  endpoint_.reset();
  mailbox_memory_ = {};
  message_memory_ = {};
  own_domain_.reset();
}

}  // namespace gradrail::transport::ofi
