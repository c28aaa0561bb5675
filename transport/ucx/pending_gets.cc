#include "transport/ucx/pending_gets.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/context.h"

namespace gradrail::transport::ucx {
namespace {

constexpr const char* kReceiving = "receive the data of a get";

}  // namespace

absl::Status PendingGets::start(const LocalSlice& target, const RegionKey& source, uint64_t offset, uint64_t tag,
                                Sender& sender) {
  const auto get = std::find_if(gets_.begin(), gets_.end(), [](const Get& each) { return each.region == nullptr; });
  // Sender::request() relies on a free operation.
  if (get == gets_.end() || sender.full()) return Sender::full_error();
  GRADRAIL_CHECK(target.region != nullptr && !get->moved);  // null marks a free slot
  const auto* const region = static_cast<const Region*>(target.region);
  // The number consists of that of the slot and a counter, so that no late answer matches.
  const uint64_t number = ++next_ * kMaxGets + static_cast<uint64_t>(get - gets_.begin());
  *get = {.gets = this,
          .target = region->span().data + target.offset,
          .bytes = target.bytes,
          .tag = tag,
          .region = region,
          .number = number};
  absl::Status status = sender.request({.kind = MessageKind::get_request,
                                        .wants_rendezvous = region->on_gpu(),
                                        .region = source.region,
                                        .region_token = source.token,
                                        .offset = offset,
                                        .value = number,
                                        .length = target.bytes});
  if (!status.ok()) get->region = nullptr;
  return status;
}

ucs_status_t PendingGets::data_arrived(const Header& header, void* data, size_t bytes, bool rendezvous) {
  Get& get = gets_[header.value % kMaxGets];
  if (get.region == nullptr || get.number != header.value || get.bytes != bytes || get.answered) {
    return connection_.refuse(absl::DataLossError("the answer to a get that was not requested"));
  }
  get.answered = true;
  if (!rendezvous) {
    if (bytes > 0 && get.region->on_gpu()) {
      return connection_.refuse(
          absl::DataLossError("the answer to a get into GPU memory did not arrive by rendezvous"));
    }
    if (bytes > 0) std::memcpy(get.target, data, bytes);
    done(get);
    return UCS_OK;
  }
  ++receiving_;
  const ucs_status_ptr_t request = get.region->receive(context_.worker(), data, get.target, bytes, on_moved, &get);
  // The receive has taken over UCX's descriptor. This is so below as well, where it has ended immediately.
  if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
  --receiving_;
  if (UCS_PTR_STATUS(request) == UCS_OK) {
    moved(get);
  } else {
    connection_.fail_native(kReceiving, UCS_PTR_STATUS(request));
  }
  return UCS_INPROGRESS;
}

void PendingGets::moved(Get& get) {
  // PutReceiver::moved() gives the reason for this check.
  if (connection_.uses_rdma()) return done(get);
  get.moved = true;
  context_.confirm_alive_soon(&connection_);
}

void PendingGets::confirm() {
  for (Get& get : gets_) {
    if (get.moved) done(get);
  }
}

void PendingGets::done(Get& get) {
  GRADRAIL_CHECK(get.region != nullptr && get.answered);  // one completion for each get
  context_.report({.kind = Completion::Kind::get_done, .connection = &connection_, .tag = get.tag});
  get.region = nullptr;
  get.moved = false;
}

void PendingGets::on_moved(void* request, ucs_status_t status, size_t, void* user) {
  ucp_request_free(request);
  auto& get = *static_cast<Get*>(user);
  PendingGets& self = *get.gets;
  GRADRAIL_CHECK(self.receiving_ > 0);
  --self.receiving_;
  // peer_lost represents the gets of a connection that ends.
  if (self.connection_.state() != UcxConnection::State::open) return;
  if (status == UCS_OK) return self.moved(get);
  self.connection_.fail_native(kReceiving, status);
}

}  // namespace gradrail::transport::ucx
