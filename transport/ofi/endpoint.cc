#include "transport/ofi/endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "transport/ofi/handshake.h"
#include "transport/ofi/native_error.h"

namespace gradrail::transport::ofi {
namespace {

/// All that one connection can have under way, in both directions.
constexpr size_t kQueueEntries = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::open(fid_fabric* fabric, Domain& domain, bool accepts) {
  std::unique_ptr<Endpoint> made(new Endpoint(domain));
  GRADRAIL_RETURN_IF_ERROR(made->open_queue());
  // An endpoint with its own connection is made later, from the address or the request of its peer.
  absl::Status status = domain.provider().connects ? made->open_events(fabric, accepts) : made->open_addresses();
  if (status.ok() && !domain.provider().connects) status = made->make_from(domain.provider().info.get());
  if (status.ok() && !domain.provider().connects) status = made->name_after(&made->endpoint_->fid);
  if (!status.ok()) return status;
  return made;
}

absl::Status Endpoint::open_queue() {
  fi_cq_attr attributes{};
  attributes.size = kQueueEntries;
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.wait_obj = FI_WAIT_FD;
  fid_cq* queue = nullptr;
  int error = fi_cq_open(domain_.fid(), &attributes, &queue, nullptr);
  // Some providers have no wait objects: OfiContext looks at their queues by timer.
  const bool waits = error == 0;
  if (error == -FI_ENOSYS || error == -FI_EINVAL || error == -FI_EOPNOTSUPP) {
    attributes.wait_obj = FI_WAIT_NONE;
    error = fi_cq_open(domain_.fid(), &attributes, &queue, nullptr);
  }
  if (error != 0) return native_error("open completion queue", -error);
  queue_.reset(queue);
  if (waits && fi_control(&queue->fid, FI_GETWAIT, &wait_fd_) != 0) wait_fd_ = -1;
  return absl::OkStatus();
}

absl::Status Endpoint::open_addresses() {
  fi_av_attr attributes{};
  attributes.type = domain_.provider().info->domain_attr->av_type;
  if (attributes.type == FI_AV_UNSPEC) attributes.type = FI_AV_TABLE;
  attributes.count = 1;
  fid_av* addresses = nullptr;
  const int error = fi_av_open(domain_.fid(), &attributes, &addresses, nullptr);
  if (error != 0) return native_error("open address table", -error);
  addresses_.reset(addresses);
  return absl::OkStatus();
}

absl::Status Endpoint::open_events(fid_fabric* fabric, bool accepts) {
  fi_eq_attr attributes{};
  attributes.wait_obj = FI_WAIT_FD;
  fid_eq* events = nullptr;
  const int error = fi_eq_open(fabric, &attributes, &events, nullptr);
  if (error != 0) return native_error("open event queue", -error);
  events_.reset(events);
  if (fi_control(&events->fid, FI_GETWAIT, &event_fd_) != 0) event_fd_ = -1;
  // A hello with an empty address counts as damaged (handshake.cc).
  address_ = "connects";
  return accepts ? listen(fabric) : absl::OkStatus();
}

absl::Status Endpoint::listen(fid_fabric* fabric) {
  fid_pep* listener = nullptr;
  int error = fi_passive_ep(fabric, domain_.provider().info.get(), &listener, nullptr);
  if (error != 0) return native_error("open listening endpoint", -error);
  listener_.reset(listener);
  error = fi_pep_bind(listener, &events_->fid, 0);
  if (error == 0) error = fi_listen(listener);
  if (error != 0) return native_error("listen for the peer's endpoint", -error);
  return name_after(&listener->fid);
}

absl::Status Endpoint::name_after(struct fid* object) {
  std::array<char, kMaxAddressBytes> name{};
  size_t bytes = name.size();
  const int error = fi_getname(object, name.data(), &bytes);
  if (error != 0) return native_error("read the endpoint's address", -error);
  address_.assign(name.data(), bytes);
  return absl::OkStatus();
}

absl::Status Endpoint::make_from(fi_info* info) {
  // An endpoint has an address table, or events of its own connection.
  GRADRAIL_CHECK(endpoint_ == nullptr && (addresses_ == nullptr) != (events_ == nullptr));
  fid_ep* endpoint = nullptr;
  int error = fi_endpoint(domain_.fid(), info, &endpoint, nullptr);
  if (error != 0) return native_error("open endpoint", -error);
  endpoint_.reset(endpoint);
  if (domain_.provider().device_memory) require_peer_to_peer();
  error = fi_ep_bind(endpoint, addresses_ != nullptr ? &addresses_->fid : &events_->fid, 0);
  if (error == 0) error = fi_ep_bind(endpoint, &queue_->fid, FI_TRANSMIT | FI_RECV);
  if (error == 0) error = fi_enable(endpoint);
  if (error != 0) return native_error("start endpoint", -error);
  domain_.set_endpoint(endpoint);
  return absl::OkStatus();
}

void Endpoint::require_peer_to_peer() {
  const int wanted = FI_HMEM_P2P_REQUIRED;
  const int error = fi_setopt(&endpoint_->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &wanted, sizeof(wanted));
  refuses_peer_to_peer_ = error == -FI_EOPNOTSUPP;
}

absl::Status Endpoint::set_peer(std::string_view address) {
  GRADRAIL_CHECK(addresses_ != nullptr && !connected_);
  const std::string terminated(address);  // addresses that are text end with the zero byte of theirs, or with this one
  const int inserted = fi_av_insert(addresses_.get(), terminated.c_str(), 1, &peer_, 0, nullptr);
  connected_ = inserted == 1;
  if (connected_) return absl::OkStatus();
  return absl::InvalidArgumentError("ofi: the provider does not understand the peer's endpoint address");
}

absl::Status Endpoint::make(std::string_view peer_address) {
  const Info info(fi_dupinfo(domain_.provider().info.get()));
  if (info == nullptr) return native_error("copy provider", FI_ENOMEM);
  // A peer's word: it must at least be as long as an address of this family is.
  if (info->src_addrlen != 0 && peer_address.size() != info->src_addrlen) {
    return absl::InvalidArgumentError("ofi: the peer's endpoint address is of another kind");
  }
  peer_address_ = peer_address;
  std::free(info->dest_addr);
  // fi_freeinfo() releases it with free().
  info->dest_addr = std::malloc(peer_address.size());
  if (info->dest_addr == nullptr) return native_error("copy address", FI_ENOMEM);
  std::memcpy(info->dest_addr, peer_address.data(), peer_address.size());
  info->dest_addrlen = peer_address.size();
  return make_from(info.get());
}

absl::Status Endpoint::connect(uint64_t token) {
  const int error = fi_connect(endpoint_.get(), peer_address_.data(), &token, sizeof(token));
  return error == 0 ? absl::OkStatus() : native_error("connect endpoint", -error);
}

absl::Status Endpoint::accept() {
  const int error = fi_accept(endpoint_.get(), nullptr, 0);
  return error == 0 ? absl::OkStatus() : native_error("accept the peer's endpoint", -error);
}

absl::StatusOr<Endpoint::Event> Endpoint::next_event(uint64_t token) {
  alignas(fi_eq_cm_entry) std::array<std::byte, sizeof(fi_eq_cm_entry) + 64> buffer{};  // room for bytes of the peer
  const auto& entry = *reinterpret_cast<const fi_eq_cm_entry*>(buffer.data());
  uint32_t event = 0;
  const ssize_t got = fi_eq_read(events_.get(), &event, buffer.data(), buffer.size(), 0);
  if (got == -FI_EAGAIN) return Event::none;
  if (got == -FI_EAVAIL) {
    fi_eq_err_entry failure{};
    fi_eq_readerr(events_.get(), &failure, 0);
    return native_error("connect endpoints", failure.err == 0 ? FI_EIO : failure.err);
  }
  if (got < 0) return native_error("read connection events", static_cast<int>(-got));
  if (event == FI_CONNECTED) connected_ = true;
  if (event == FI_CONNECTED) return Event::connected;
  if (event != FI_CONNREQ) return Event::none;  // a disconnect: the side channel reports it
  const Info info(entry.info);
  uint64_t shown = 0;
  std::memcpy(&shown, &buffer[sizeof(fi_eq_cm_entry)], sizeof(shown));
  // Any process that reaches the port can send a request. The token of the hello proves the peer, and only its first
  // request counts.
  const bool is_peer = static_cast<size_t>(got) >= sizeof(fi_eq_cm_entry) + sizeof(shown) && shown == token;
  if (!is_peer || endpoint_ != nullptr) {
    fi_reject(listener_.get(), info->handle, nullptr, 0);  // an unknown peer
    return Event::none;
  }
  GRADRAIL_RETURN_IF_ERROR(make_from(info.get()));
  return Event::asked;
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
