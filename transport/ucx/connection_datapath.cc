// Posts.
#include "base/status.h"
#include "fmt/format.h"
#include "transport/common/slice.h"
#include "transport/ucx/connection.h"

namespace gradrail::transport::ucx {

absl::Status UcxConnection::check_post() const {
  if (state_ == State::open && sender_.hello_sent()) return absl::OkStatus();
  if (state_ == State::handshake || state_ == State::open) {
    return absl::ResourceExhaustedError("ucx: the peer has not answered yet: poll, then try again");
  }
  return absl::UnavailableError(cause_.message());
}

absl::StatusOr<RemoteRegion> UcxConnection::import(std::string_view key) {
  GRADRAIL_ASSIGN_OR_RETURN(RegionKey parsed, RegionKey::parse(key));
  return imported_.add(parsed);
}

absl::StatusOr<std::byte*> UcxConnection::map(RemoteRegion) {
  return absl::UnimplementedError("ucx does not map a peer's memory");
}

absl::StatusOr<const RegionKey*> UcxConnection::remote(RemoteSlice slice, uint64_t bytes, Access wanted) const {
  const RegionKey* const key = imported_.find(slice.region);
  if (key == nullptr) {
    return absl::InvalidArgumentError("ucx: a remote region that was never imported on this connection");
  }
  // Numbers of regions repeat in other contexts, so a key names its owner.
  if (key->context != peer_.context) {
    return absl::InvalidArgumentError("ucx: the key of a region that this peer does not own");
  }
  if (bytes == 0 && wanted == Access::remote_write) return key;  // a notice without bytes
  if (!allows(key->access, wanted)) {
    return absl::PermissionDeniedError(fmt::format("ucx: the peer's region is not remotely {}",
                                                   wanted == Access::remote_write ? "writable" : "readable"));
  }
  GRADRAIL_RETURN_IF_ERROR(common::check_remote("ucx", slice, bytes, key->bytes));
  return key;
}

absl::Status UcxConnection::put(LocalSlice source, RemoteSlice target, PutOptions options) {
  GRADRAIL_RETURN_IF_ERROR(check_post());
  GRADRAIL_RETURN_IF_ERROR(common::check_local("ucx", source));
  GRADRAIL_ASSIGN_OR_RETURN(const RegionKey* const key, remote(target, source.bytes, Access::remote_write));
  return sender_.put(source, *key, target.offset, options);
}

absl::Status UcxConnection::get(LocalSlice target, RemoteSlice source, uint64_t tag) {
  GRADRAIL_RETURN_IF_ERROR(check_post());
  // PendingGets marks a free slot with a null region.
  if (target.region == nullptr) return absl::InvalidArgumentError("ucx: a get into no region");
  GRADRAIL_RETURN_IF_ERROR(common::check_local("ucx", target));
  GRADRAIL_ASSIGN_OR_RETURN(const RegionKey* const key, remote(source, target.bytes, Access::remote_read));
  return gets_.start(target, *key, source.offset, tag, sender_);
}

absl::Status UcxConnection::send(absl::Span<const std::byte> message) {
  if (state_ != State::handshake && state_ != State::open) return absl::UnavailableError(cause_.message());
  if (message.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        fmt::format("ucx: a message of {} bytes, at most {} are possible", message.size(), kMaxMessageBytes));
  }
  return sender_.send(message);
}

}  // namespace gradrail::transport::ucx
