#include "transport/ofi/link.h"

#include <rdma/fi_errno.h>

#include <array>
#include <utility>

namespace gradrail::transport::ofi {

absl::StatusOr<std::unique_ptr<Link>> Link::open(Domain& home, std::unique_ptr<Domain> own) {
  std::unique_ptr<Link> link(new Link());
  link->own_domain_ = std::move(own);
  link->domain_ = link->own_domain_ == nullptr ? &home : link->own_domain_.get();
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = Endpoint::open(*link->domain_);
  if (!endpoint.ok()) return endpoint.status();
  link->endpoint_ = *std::move(endpoint);
  absl::StatusOr<Registration> slab = link->domain_->add_messages(link->messages_.slab());
  if (!slab.ok()) return slab.status();
  link->message_memory_ = *std::move(slab);
  absl::StatusOr<Registration> mailbox =
      link->domain_->add({.data = link->mailbox_, .bytes = sizeof(link->mailbox_)}, Access::remote_write);
  if (!mailbox.ok()) return mailbox.status();
  link->mailbox_memory_ = *std::move(mailbox);
  absl::Status started = link->messages_.start(*link->endpoint_, link->message_memory_.descriptor);
  if (!started.ok()) return started;
  return link;
}

void Link::drain() const {
  std::array<fi_cq_data_entry, 16> entries;
  while (true) {
    const ssize_t got = fi_cq_read(endpoint_->queue(), entries.data(), entries.size());
    if (got > 0) continue;
    if (got != -FI_EAVAIL) return;
    endpoint_->read_failure();
  }
}

void Link::shut() {
  endpoint_.reset();
  mailbox_memory_ = {};
  message_memory_ = {};
  own_domain_.reset();
}

}  // namespace gradrail::transport::ofi
