#include "transport/ucx/put_receiver.h"

#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/context.h"

namespace gradrail::transport::ucx {
namespace {

/// Puts arrive before this side has opened: the peer may put as soon as its own side is open.
bool receives(const UcxConnection& connection) {
  return connection.state() == UcxConnection::State::handshake || connection.state() == UcxConnection::State::open;
}

}  // namespace

ucs_status_t PutReceiver::arrived(const Header& header, void* data, size_t bytes, const ucp_am_recv_param_t& param) {
  if (header.sequence != next_++) {
    return connection_.refuse(absl::DataLossError("puts out of order: is UCX_MAX_EAGER_RAILS more than 1?"));
  }
  const Region* region = nullptr;
  if (bytes > 0) {
    const absl::StatusOr<const Region*> found = context_.regions().resolve(header, bytes, Access::remote_write);
    if (!found.ok()) return connection_.refuse(found.status());
    region = *found;
  }
  std::byte* const target = region == nullptr ? nullptr : region->span().data + header.offset;
  // A put of no bytes has no region to receive into. The return without a receive ends its rendezvous.
  const bool rendezvous = bytes > 0 && (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  // The processor would write the bytes to an address of the GPU (wire.h).
  if (!rendezvous && region != nullptr && region->on_gpu()) {
    return connection_.refuse(absl::DataLossError("a put to GPU memory that did not arrive by rendezvous"));
  }
  // The usual small put: nothing older is under way, so its order needs no record.
  if (!rendezvous && arrivals_.empty()) {
    if (target != nullptr) std::memcpy(target, data, bytes);
    if (header.notify) announce(header.value);
    return UCS_OK;
  }
  Arrival* const pushed = arrivals_.push();
  if (pushed == nullptr) return connection_.refuse(absl::ResourceExhaustedError("more puts in flight than permitted"));
  Arrival& arrival = *pushed;
  arrival.receiver = this;
  arrival.region = region;
  arrival.target = target;
  arrival.bytes = bytes;
  arrival.immediate = header.value;
  arrival.notify = header.notify;
  arrival.rendezvous = rendezvous;
  arrival.state = Arrival::State::waiting;
  if (arrivals_.must_wait(arrival)) return hold(arrival, data, param);
  start(arrival, data);
  return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

ucs_status_t PutReceiver::hold(Arrival& arrival, void* data, const ucp_am_recv_param_t& param) {
  // Otherwise the bytes are valid during the callback only.
  if (arrival.rendezvous || (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0) {
    arrival.held = data;
    return UCS_INPROGRESS;
  }
  arrival.copy = std::make_unique_for_overwrite<std::byte[]>(arrival.bytes);
  std::memcpy(arrival.copy.get(), data, arrival.bytes);
  return UCS_OK;
}

void PutReceiver::start(Arrival& arrival, void* data) {
  GRADRAIL_CHECK(arrival.state == Arrival::State::waiting && arrival.held == nullptr);
  GRADRAIL_CHECK(arrival.region != nullptr || (arrival.bytes == 0 && !arrival.rendezvous));
  if (!arrival.rendezvous) {
    if (arrival.bytes > 0) std::memcpy(arrival.target, data, arrival.bytes);
    arrival.state = Arrival::State::done;
    return announce_done();
  }
  arrival.state = Arrival::State::moving;
  ++receiving_;
  const ucs_status_ptr_t request =
      arrival.region->receive(context_.worker(), data, arrival.target, arrival.bytes, on_moved, &arrival);
  if (UCS_PTR_IS_PTR(request)) return;
  --receiving_;
  if (UCS_PTR_STATUS(request) == UCS_OK) return moved(arrival);
  arrival.state = Arrival::State::done;
  connection_.fail_native("receive a put", UCS_PTR_STATUS(request));
}

void PutReceiver::on_moved(void* request, ucs_status_t status, size_t, void* user) {
  ucp_request_free(request);
  auto& arrival = *static_cast<Arrival*>(user);
  PutReceiver& self = *arrival.receiver;
  GRADRAIL_CHECK(self.receiving_ > 0 && arrival.state == Arrival::State::moving);
  --self.receiving_;
  if (status == UCS_OK && receives(self.connection_)) return self.moved(arrival);
  arrival.state = Arrival::State::moved;  // never announced
  // A put that completes while the connection ends is no second cause.
  if (status != UCS_OK) self.connection_.fail_native("receive a put", status);
}

// A device reads the sender's memory over a queue pair that ends with the sender's connection. A system call or the
// sender's own loop may copy bytes from memory that a closed sender has reused. The side channel reports the close
// before that.
void PutReceiver::moved(Arrival& arrival) {
  const bool rdma = connection_.uses_rdma();
  arrival.state = rdma ? Arrival::State::done : Arrival::State::moved;
  if (rdma) {
    announce_done();
  } else {
    context_.confirm_alive_soon(&connection_);
  }
  start_waiting();
}

void PutReceiver::confirm() {
  arrivals_.for_each([](Arrival& arrival) {
    if (arrival.state == Arrival::State::moved) arrival.state = Arrival::State::done;
  });
  announce_done();
}

void PutReceiver::announce(uint64_t immediate) {
  context_.report({.kind = Completion::Kind::put_arrived, .connection = &connection_, .immediate = immediate});
}

void PutReceiver::announce_done() {
  // The oldest unfinished put holds back the notices behind it: they keep the order of the posts.
  while (!arrivals_.empty() && arrivals_.front().state == Arrival::State::done) {
    if (arrivals_.front().notify) announce(arrivals_.front().immediate);
    arrivals_.pop();
  }
}

void PutReceiver::start_waiting() {
  while (receives(connection_)) {
    Arrival* const arrival = arrivals_.next_to_start();
    if (arrival == nullptr) return;
    void* const held = std::exchange(arrival->held, nullptr);
    const std::unique_ptr<std::byte[]> copy = std::move(arrival->copy);
    // The receive takes over the descriptor of a rendezvous; any other is released here.
    const bool release = held != nullptr && !arrival->rendezvous;
    start(*arrival, held != nullptr ? held : copy.get());  // may announce, which destroys it
    if (release) ucp_am_data_release(context_.worker(), held);
  }
}

void PutReceiver::drop_held() {
  arrivals_.for_each([&](Arrival& arrival) {
    if (arrival.held != nullptr) ucp_am_data_release(context_.worker(), std::exchange(arrival.held, nullptr));
    arrival.copy.reset();
  });
}

bool PutReceiver::writes_to(const Region& region) {
  bool writes = false;
  arrivals_.for_each(
      [&](const Arrival& arrival) { writes = writes || (arrival.writes() && arrival.region == &region); });
  return writes;
}

}  // namespace gradrail::transport::ucx
