#include "transport/ofi/endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>

#include <array>

#include "transport/ofi/greeting.h"
#include "transport/ofi/native_error.h"

namespace gradrail::transport::ofi {
namespace {

/// All that one connection can have under way, in both directions.
constexpr size_t kQueueEntries = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::open(Domain& domain) {
  std::unique_ptr<Endpoint> made(new Endpoint());
  if (absl::Status status = made->open_queue(domain); !status.ok()) return status;
  if (absl::Status status = made->open_addresses(domain); !status.ok()) return status;
  fid_ep* endpoint = nullptr;
  const int error = fi_endpoint(domain.fid(), domain.provider().info.get(), &endpoint, nullptr);
  if (error != 0) return native_error("open endpoint", -error);
  made->endpoint_.reset(endpoint);
  if (absl::Status status = made->start(); !status.ok()) return status;
  domain.set_endpoint(endpoint);
  return made;
}

absl::Status Endpoint::open_queue(Domain& domain) {
  fi_cq_attr attributes{};
  attributes.size = kQueueEntries;
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.wait_obj = FI_WAIT_FD;
  fid_cq* queue = nullptr;
  int error = fi_cq_open(domain.fid(), &attributes, &queue, nullptr);
  const bool waits = error == 0;
  if (error == -FI_ENOSYS || error == -FI_EINVAL || error == -FI_EOPNOTSUPP) {
    attributes.wait_obj = FI_WAIT_NONE;
    error = fi_cq_open(domain.fid(), &attributes, &queue, nullptr);
  }
  if (error != 0) return native_error("open completion queue", -error);
  queue_.reset(queue);
  if (waits && fi_control(&queue->fid, FI_GETWAIT, &wait_fd_) != 0) wait_fd_ = -1;
  return absl::OkStatus();
}

absl::Status Endpoint::open_addresses(Domain& domain) {
  fi_av_attr attributes{};
  attributes.type = domain.provider().info->domain_attr->av_type;
  if (attributes.type == FI_AV_UNSPEC) attributes.type = FI_AV_TABLE;
  attributes.count = 1;
  fid_av* addresses = nullptr;
  const int error = fi_av_open(domain.fid(), &attributes, &addresses, nullptr);
  if (error != 0) return native_error("open address table", -error);
  addresses_.reset(addresses);
  return absl::OkStatus();
}

absl::Status Endpoint::start() {
  int error = fi_ep_bind(endpoint_.get(), &addresses_->fid, 0);
  if (error == 0) error = fi_ep_bind(endpoint_.get(), &queue_->fid, FI_TRANSMIT | FI_RECV);
  if (error == 0) error = fi_enable(endpoint_.get());
  if (error != 0) return native_error("start endpoint", -error);
  std::array<char, kMaxAddressBytes> name{};
  size_t bytes = name.size();
  error = fi_getname(&endpoint_->fid, name.data(), &bytes);
  if (error != 0) return native_error("ask for the endpoint's address", -error);
  address_.assign(name.data(), bytes);
  return absl::OkStatus();
}

absl::Status Endpoint::set_peer(std::string_view address) {
  const std::string terminated(address);  // addresses that are text end with the zero byte of theirs, or with this one
  const int inserted = fi_av_insert(addresses_.get(), terminated.c_str(), 1, &peer_, 0, nullptr);
  if (inserted == 1) return absl::OkStatus();
  return absl::InvalidArgumentError("ofi: the provider does not understand the peer's endpoint address");
}

Endpoint::Failure Endpoint::read_failure() const {
  std::array<char, 256> text{};
  fi_cq_err_entry entry{};
  if (fi_cq_readerr(queue_.get(), &entry, 0) <= 0) return {};
  const char* detail = entry.prov_errno == 0
                           ? ""
                           : fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, text.data(), text.size());
  return {entry.err < 0 ? -entry.err : entry.err, static_cast<Operation*>(entry.op_context),
          detail == nullptr ? "" : detail};
}

}  // namespace gradrail::transport::ofi
