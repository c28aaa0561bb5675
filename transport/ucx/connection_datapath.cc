// The sending side.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/slice.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/context.h"
#include "transport/ucx/native_error.h"

namespace gradrail::transport::ucx {

absl::Status UcxConnection::check_post() const {
  if (state_ == State::open && hello_sent_) return absl::OkStatus();
  if (state_ == State::handshake || state_ == State::open)
    return absl::ResourceExhaustedError("ucx: the peer has not answered yet: poll, then try again");
  return absl::UnavailableError(cause_.message());
}

absl::Status UcxConnection::full() const {
  return absl::ResourceExhaustedError("ucx: the queue to this peer is full: poll, then try again");
}

absl::StatusOr<const RegionKey*> UcxConnection::remote(RemoteSlice slice, uint64_t bytes, Access wanted) const {
  const RegionKey* const key = imported_.find(slice.region);
  if (key == nullptr) {
    return absl::InvalidArgumentError("ucx: a remote region that was never imported on this connection");
  }
  if (key->context != peer_.context) {
    return absl::InvalidArgumentError("ucx: the key of a region of another context than this peer's");
  }
  if (bytes == 0 && wanted == Access::remote_write) return key;  // only notifies
  if (!allows(key->access, wanted)) {
    return absl::PermissionDeniedError(fmt::format("ucx: the peer's region is not remotely {}",
                                                   wanted == Access::remote_write ? "writable" : "readable"));
  }
  if (absl::Status status = common::check_remote("ucx", slice, bytes, key->bytes); !status.ok()) return status;
  return key;
}

Header UcxConnection::header_of(MessageKind kind) const {
  return {.kind = kind, .connection = peer_.connection, .token = peer_.token};
}

absl::Status UcxConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  if (absl::Status status = check_post(); !status.ok()) return status;
  if (absl::Status status = common::check_local("ucx", source); !status.ok()) return status;
  const absl::StatusOr<const RegionKey*> key = remote(target, source.bytes, Access::remote_write);
  if (!key.ok()) return key.status();
  if (operations_.empty() || put_window_full()) return full();
  Operation* const operation = operations_.take();
  operation->kind = MessageKind::put;
  operation->sequence = next_put_;
  operation->tag = options.tag;
  Header header = header_of(MessageKind::put);
  header.notify = options.immediate.has_value();
  header.sequence = next_put_;
  header.region = (*key)->region;
  header.region_token = (*key)->token;
  header.offset = target.offset;
  header.value = options.immediate.value_or(0);
  const auto* const region = static_cast<const Region*>(source.region);
  const std::byte* const data = common::address_of(source);
  put_done_[next_put_ % kPutWindow] = false;
  ++next_put_;
  const bool on_gpu = source.bytes > 0 && (region->on_gpu() || (*key)->kind == MemoryKind::cuda);
  absl::Status status = post(operation, header, data, source.bytes, source.bytes == 0 ? nullptr : region, on_gpu);
  if (!status.ok()) --next_put_;
  return status;
}

absl::Status UcxConnection::send(absl::Span<const std::byte> message) {
  if (absl::Status status = check_post(); !status.ok() && state_ != State::handshake && state_ != State::open) {
    return status;
  }
  if (message.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        fmt::format("ucx: a message of {} bytes, at most {} are possible", message.size(), kMaxMessageBytes));
  }
  if (operations_.empty()) return full();
  Operation* const operation = operations_.take();
  operation->kind = MessageKind::message;
  operation->tag = 0;
  operation->body = context_.take_buffer();
  if (!message.empty()) std::memcpy(operation->body.get(), message.data(), message.size());
  if (state_ == State::open) return post_message(operation, message.size());
  early_messages_.push_back({operation, message.size()});
  return absl::OkStatus();
}

absl::Status UcxConnection::post_message(Operation* operation, size_t bytes) {
  Header header = header_of(MessageKind::message);
  header.sequence = next_message_++;
  absl::Status status = post(operation, header, operation->body.get(), bytes, nullptr);
  if (!status.ok()) --next_message_;
  return status;
}

void UcxConnection::post_hello() {
  Operation* const operation = answers_.take();  // all are free, while messages may have taken those of the owner
  operation->kind = MessageKind::hello;
  const absl::Status status = post(operation, header_of(MessageKind::hello), nullptr, 0, nullptr);
  if (!status.ok()) fail({status.code(), fmt::format("ucx {}: hello: {}", ends_, message_of(status))});
}

void UcxConnection::post_early_messages() {
  for (const EarlyMessage& early : std::exchange(early_messages_, {})) {
    const absl::Status status = post_message(early.operation, early.bytes);
    // The caller received the confirmation that it is in flight.
    if (!status.ok()) fail({status.code(), fmt::format("ucx {}: the first messages: {}", ends_, message_of(status))});
  }
}

PendingGet* UcxConnection::free_get() {
  const auto found =
      std::find_if(gets_.begin(), gets_.end(), [](const PendingGet& get) { return get.region == nullptr; });
  return found == gets_.end() ? nullptr : &*found;
}

absl::Status UcxConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  if (absl::Status status = check_post(); !status.ok()) return status;
  if (target.region == nullptr) return absl::InvalidArgumentError("ucx: a get into no region");
  if (absl::Status status = common::check_local("ucx", target); !status.ok()) return status;
  const absl::StatusOr<const RegionKey*> key = remote(source, target.bytes, Access::remote_read);
  if (!key.ok()) return key.status();
  PendingGet* const get = free_get();
  if (get == nullptr || operations_.empty()) return full();
  const auto* const region = static_cast<const Region*>(target.region);
  Operation* const operation = operations_.take();
  operation->kind = MessageKind::get_request;
  operation->tag = 0;
  Header header = header_of(MessageKind::get_request);
  header.region = (*key)->region;
  header.region_token = (*key)->token;
  header.offset = source.offset;
  header.length = target.bytes;
  header.wants_rendezvous = region->on_gpu();
  // The number of the slot, with a counter that no late answer matches.
  const auto slot = static_cast<uint64_t>(get - gets_.data());
  header.value = ++next_get_ * kMaxGets + slot;
  *get = {.connection = this,
          .target = region->span().data + target.offset,
          .bytes = target.bytes,
          .tag = tag,
          .region = region,
          .number = header.value};
  absl::Status status = post(operation, header, nullptr, 0, nullptr);
  if (!status.ok()) get->region = nullptr;
  return status;
}

absl::Status UcxConnection::post(Operation* operation, const Header& header, const std::byte* data, size_t bytes,
                                 const Region* region, bool by_rendezvous) {
  operation->connection = this;
  operation->header = encode(header);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.send = on_sent;
  param.user_data = operation;
  if (header.kind == MessageKind::message || header.kind == MessageKind::get_request) {
    // Small, and a message must not wait until the receiver fetches it.
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
  }
  if (by_rendezvous) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_RNDV;
  }
  if (region != nullptr) {
    param.memory_type = region->memory_type();
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = region->handle();
  }
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kActiveMessage, operation->header.data(), header.bytes(), data, bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return absl::OkStatus();
  const ucs_status_t status = UCS_PTR_STATUS(request);
  if (status == UCS_OK) {
    sent(operation, status);
    return absl::OkStatus();
  }
  give_back(operation);
  if (status == UCS_ERR_NO_RESOURCE || status == UCS_ERR_NO_MEMORY) return full();
  const absl::Status error = native_error(kind_name(header.kind), status);
  fail({error.code(), fmt::format("{}: {}", describe(), message_of(error))});
  return cause_;
}

void UcxConnection::on_sent(void* request, ucs_status_t status, void* operation) {
  ucp_request_free(request);
  auto* const ended = static_cast<Operation*>(operation);
  ended->connection->sent(ended, status);
}

void UcxConnection::sent(Operation* operation, ucs_status_t status) {
  const MessageKind kind = operation->kind;
  const uint64_t tag = operation->tag;
  if (kind == MessageKind::put) put_sent(operation->sequence);
  give_back(operation);
  hello_sent_ = hello_sent_ || (kind == MessageKind::hello && status == UCS_OK);
  if (state_ != State::open) return;
  if (status != UCS_OK) {
    const absl::Status error = native_error(kind_name(kind), status);
    return fail({error.code(), fmt::format("{}: {}", describe(), message_of(error))});
  }
  if (kind == MessageKind::hello) {
    lanes_ = lanes_of(endpoint_);
    if (proven()) introduce();
  }
  if (kind == MessageKind::put && tag != 0) {
    context_.report({.kind = Completion::Kind::put_done, .connection = this, .tag = tag});
  }
}

void UcxConnection::put_sent(uint32_t sequence) {
  put_done_[sequence % kPutWindow] = true;
  while (oldest_put_ != next_put_ && put_done_[oldest_put_ % kPutWindow]) ++oldest_put_;
}

void UcxConnection::give_back(Operation* operation) {
  if (operation->body != nullptr) context_.recycle(std::move(operation->body));
  const bool answer = operation->kind == MessageKind::get_data || operation->kind == MessageKind::hello;
  (answer ? answers_ : operations_).give_back(operation);
}

}  // namespace gradrail::transport::ucx
