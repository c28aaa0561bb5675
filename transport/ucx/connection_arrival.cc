// Arrivals. All of this runs in callbacks of UCX, within the worker's progress.
#include <cstring>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/context.h"
#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {

ucs_status_t UcxConnection::arrived(const Header& header, void* data, size_t bytes, const ucp_am_recv_param_t& param) {
  if (header.kind == MessageKind::hello) peer_said_hello_ = true;
  if (state_ != State::open && state_ != State::handshake) return UCS_ERR_CANCELED;
  const bool rendezvous = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  // A peer in haste speaks before our own hello is out: the owner hears of it in the right order all the same.
  if (header.kind != MessageKind::hello) introduce();
  switch (header.kind) {
    case MessageKind::put:
      return put_arrives(header, data, bytes, param);
    case MessageKind::message:
      return message_arrives(header, data, bytes, rendezvous);
    case MessageKind::get_request:
      return get_request_arrives(header);
    case MessageKind::get_data:
      return get_data_arrives(header, data, bytes, rendezvous);
    case MessageKind::hello:
      break;
  }
  if (proven()) introduce();
  return UCS_OK;
}

ucs_status_t UcxConnection::refuse(const absl::Status& why) {
  spdlog::warn("ucx {}: refused the peer: {}", ends_, message_of(why));
  fail({why.code(), fmt::format("ucx {}: refused the peer: {}", ends_, message_of(why))});
  return UCS_ERR_REJECTED;
}

void UcxConnection::introduce() {
  if (side_ == Side::accepted && !std::exchange(introduced_, true)) context_.introduce(this);
}

ucs_status_t UcxConnection::put_arrives(const Header& header, void* data, size_t bytes,
                                        const ucp_am_recv_param_t& param) {
  if (header.sequence != next_put_arrival_++) {
    return refuse(absl::DataLossError("puts out of order: is UCX_MAX_EAGER_RAILS more than 1?"));
  }
  const Region* region = nullptr;
  if (bytes > 0) {
    const absl::StatusOr<const Region*> found = context_.regions().resolve(header, bytes, Access::remote_write);
    if (!found.ok()) return refuse(found.status());
    region = *found;
  }
  std::byte* const target = region == nullptr ? nullptr : region->span().data + header.offset;
  const bool rendezvous = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (!rendezvous && region != nullptr && region->on_gpu()) {
    return refuse(absl::DataLossError("a put to GPU memory that did not come by rendezvous"));
  }
  if (!rendezvous && arrivals_.empty()) {
    if (target != nullptr) std::memcpy(target, data, bytes);
    if (header.notify) announce(header.value);
    return UCS_OK;
  }
  Arrival* const pushed = arrivals_.push();
  if (pushed == nullptr) return refuse(absl::ResourceExhaustedError("more puts under way than agreed"));
  Arrival& arrival = *pushed;
  arrival.connection = this;
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

ucs_status_t UcxConnection::hold(Arrival& arrival, void* data, const ucp_am_recv_param_t& param) {
  if (arrival.rendezvous || (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0) {
    arrival.held = data;
    return UCS_INPROGRESS;
  }
  arrival.copy = std::make_unique_for_overwrite<std::byte[]>(arrival.bytes);
  std::memcpy(arrival.copy.get(), data, arrival.bytes);
  return UCS_OK;
}

void UcxConnection::start(Arrival& arrival, void* data) {
  if (!arrival.rendezvous) {
    if (arrival.bytes > 0) std::memcpy(arrival.target, data, arrival.bytes);
    arrival.state = Arrival::State::done;
    return announce();
  }
  arrival.state = Arrival::State::moving;
  const ucs_status_ptr_t request =
      receive(data, arrival.target, arrival.bytes, *arrival.region, on_put_moved, &arrival);
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_STATUS(request) == UCS_OK) return moved(arrival);
  arrival.state = Arrival::State::done;
  const absl::Status error = native_error("receive a put", UCS_PTR_STATUS(request));
  fail({error.code(), fmt::format("{}: {}", describe(), message_of(error))});
}

ucs_status_ptr_t UcxConnection::receive(void* descriptor, std::byte* target, size_t bytes, const Region& region,
                                        ucp_am_recv_data_nbx_callback_t callback, void* user_data) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
  param.memory_type = region.memory_type();
  param.memh = region.handle();
  param.cb.recv_am = callback;
  param.user_data = user_data;
  ++receiving_;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(context_.worker(), descriptor, target, bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) --receiving_;
  return request;
}

void UcxConnection::on_put_moved(void* request, ucs_status_t status, size_t, void* user_data) {
  ucp_request_free(request);
  auto& arrival = *static_cast<Arrival*>(user_data);
  UcxConnection& self = *arrival.connection;
  --self.receiving_;
  if (status == UCS_OK && self.state_ == State::open) return self.moved(arrival);
  arrival.state = Arrival::State::moved;  // never to be announced
  const absl::Status error = native_error("receive a put", status);
  self.fail({error.code(), fmt::format("{}: {}", self.describe(), message_of(error))});
}

// A device reads the sender's memory over a queue pair that ends with the sender's connection. A system call or the
// sender's own loop may copy bytes from memory that a closed sender has reused. The side channel reports the close
// before that.
void UcxConnection::moved(Arrival& arrival) {
  arrival.state = lanes_.rdma ? Arrival::State::done : Arrival::State::moved;
  if (lanes_.rdma) {
    announce();
  } else {
    context_.confirm_alive_soon(this);
  }
  start_waiting();
}

void UcxConnection::confirm_alive() {
  if (state_ != State::open) return;
  arrivals_.for_each([](Arrival& arrival) {
    if (arrival.state == Arrival::State::moved) arrival.state = Arrival::State::done;
  });
  announce();
  for (PendingGet& get : gets_) {
    if (get.moved) get_done(get);
  }
}

void UcxConnection::announce(uint64_t immediate) {
  context_.report({.kind = Completion::Kind::put_arrived, .connection = this, .immediate = immediate});
}

void UcxConnection::announce() {
  while (!arrivals_.empty() && arrivals_.front().state == Arrival::State::done) {
    if (arrivals_.front().notify) announce(arrivals_.front().immediate);
    arrivals_.pop();
  }
}

void UcxConnection::start_waiting() {
  while (state_ == State::open) {
    Arrival* const arrival = arrivals_.next_to_start();
    if (arrival == nullptr) return;
    void* const held = std::exchange(arrival->held, nullptr);
    const std::unique_ptr<std::byte[]> copy = std::move(arrival->copy);
    const bool release = held != nullptr && !arrival->rendezvous;
    start(*arrival, held != nullptr ? held : copy.get());  // may announce, after which it is gone
    if (release) ucp_am_data_release(context_.worker(), held);
  }
}

ucs_status_t UcxConnection::message_arrives(const Header& header, const void* data, size_t bytes, bool rendezvous) {
  if (header.sequence != next_message_arrival_++) {
    return refuse(absl::DataLossError("messages out of order: is UCX_MAX_EAGER_RAILS more than 1?"));
  }
  if (bytes > kMaxMessageBytes || rendezvous) {
    return refuse(absl::DataLossError(fmt::format("message of {} bytes", bytes)));
  }
  MessageBuffer body = context_.take_buffer();
  if (bytes > 0) std::memcpy(body.get(), data, bytes);
  Completion message{.kind = Completion::Kind::message, .connection = this};
  message.message = {body.get(), bytes};
  context_.report(std::move(message), std::move(body));
  return UCS_OK;
}

void UcxConnection::answer_early_requests() {
  for (const Header& request : std::exchange(early_requests_, {})) get_request_arrives(request);
}

ucs_status_t UcxConnection::get_request_arrives(const Header& header) {
  if (state_ == State::handshake && early_requests_.size() < kMaxGets) {
    early_requests_.push_back(header);  // nothing to answer over yet
    return UCS_OK;
  }
  const absl::StatusOr<const Region*> region = context_.regions().resolve(header, header.length, Access::remote_read);
  if (!region.ok()) return refuse(region.status());
  if (answers_.empty()) return refuse(absl::ResourceExhaustedError("more gets under way than agreed"));
  Operation* const operation = answers_.take();
  operation->kind = MessageKind::get_data;
  operation->region = *region;
  Header answer = header_of(MessageKind::get_data);
  answer.value = header.value;
  const Region* const registered = header.length == 0 ? nullptr : *region;
  const bool by_rendezvous = header.length > 0 && ((*region)->on_gpu() || header.wants_rendezvous);
  const absl::Status status =
      post(operation, answer, (*region)->span().data + header.offset, header.length, registered, by_rendezvous);
  if (!status.ok()) fail({status.code(), fmt::format("ucx {}: answer a get: {}", ends_, message_of(status))});
  return UCS_OK;
}

ucs_status_t UcxConnection::get_data_arrives(const Header& header, void* data, size_t bytes, bool rendezvous) {
  PendingGet& get = gets_[header.value % kMaxGets];
  if (get.region == nullptr || get.number != header.value || get.bytes != bytes) {
    return refuse(absl::DataLossError("the answer to a get that was not asked"));
  }
  if (!rendezvous) {
    if (bytes > 0 && get.region->on_gpu()) {
      return refuse(absl::DataLossError("the answer to a get into GPU memory did not come by rendezvous"));
    }
    if (bytes > 0) std::memcpy(get.target, data, bytes);
    get_done(get);
    return UCS_OK;
  }
  const ucs_status_ptr_t request = receive(data, get.target, bytes, *get.region, on_get_moved, &get);
  if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
  if (UCS_PTR_STATUS(request) == UCS_OK) {
    get_moved(get);
  } else {
    const absl::Status error = native_error("receive what a get asked for", UCS_PTR_STATUS(request));
    fail({error.code(), fmt::format("{}: {}", describe(), message_of(error))});
  }
  return UCS_INPROGRESS;
}

void UcxConnection::get_moved(PendingGet& get) {
  if (lanes_.rdma) return get_done(get);
  get.moved = true;
  context_.confirm_alive_soon(this);
}

void UcxConnection::get_done(PendingGet& get) {
  context_.report({.kind = Completion::Kind::get_done, .connection = this, .tag = get.tag});
  get.region = nullptr;
  get.moved = false;
}

void UcxConnection::on_get_moved(void* request, ucs_status_t status, size_t, void* user_data) {
  ucp_request_free(request);
  auto& get = *static_cast<PendingGet*>(user_data);
  UcxConnection& self = *get.connection;
  --self.receiving_;
  if (self.state_ != State::open) return;
  if (status == UCS_OK) return self.get_moved(get);
  const absl::Status error = native_error("receive what a get asked for", status);
  self.fail({error.code(), fmt::format("{}: {}", self.describe(), message_of(error))});
}

}  // namespace gradrail::transport::ucx
