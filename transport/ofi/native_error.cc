#include "transport/ofi/native_error.h"

#include <rdma/fi_errno.h>

#include <string>

#include "base/gpu_memory.h"
#include "fmt/format.h"
#include "transport/common/native_error.h"

namespace gradrail::transport::ofi {
namespace {

common::ErrorMeaning meaning(int error) {
  switch (error) {
    case FI_ENODATA:
      return {absl::StatusCode::kUnavailable, "no such provider or device here; see `fi_info`"};
    case FI_ECONNREFUSED:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ENOTCONN:
    case FI_ESHUTDOWN:
      return {absl::StatusCode::kUnavailable, "the peer was killed or closed the connection: see its log"};
    case FI_ENODEV:
      return {absl::StatusCode::kUnavailable, "the device was removed, or is not up: see `rdma link`"};
    case FI_EIO:
    case FI_ETIMEDOUT:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
      return {absl::StatusCode::kUnavailable, "the peer or the path to it is lost: check link, port and switch"};
    case FI_EACCES:
    case FI_EPERM:
    case FI_ENOKEY:
    case FI_EKEYREJECTED:
      return {absl::StatusCode::kPermissionDenied, "the peer's memory is not open to this connection there"};
    case FI_ENOMEM:
    case FI_EMFILE:
    case FI_ENOSPC:
      return {absl::StatusCode::kResourceExhausted, "check `ulimit -l`, `ulimit -n` and /dev/shm"};
    case FI_ENOSYS:
    case FI_EOPNOTSUPP:
      return {absl::StatusCode::kUnimplemented, "choose another provider"};
    default:
      return {absl::StatusCode::kUnavailable, "FI_LOG_LEVEL=warn shows more"};
  }
}

}  // namespace

absl::Status native_error(std::string_view doing, int error, std::string_view detail) {
  std::string text = fi_strerror(error);
  if (!detail.empty() && detail != text) text += fmt::format(": {}", detail);
  return common::native_error("ofi", doing, text, meaning(error));
}

absl::Status registration_error(size_t bytes, int error) {
  // The kernel reports the limit on locked memory by any of these three (mlock(2)).
  if (error != FI_ENOMEM && error != FI_EAGAIN && error != FI_EPERM) {
    return native_error(fmt::format("register {} bytes", bytes), error);
  }
  return common::locked_memory_error("ofi", bytes, fi_strerror(error));
}

absl::Status gpu_registration_error(const MemorySpan& memory, std::string_view device, int error) {
  const bool dma_buf = memory.gpu->way() == NicGpuTransfer::dma_buf;
  const std::string text = fmt::format("ofi: register {} bytes of GPU {} with {} by {}: {}", memory.bytes,
                                       memory.gpu->ordinal(), device, name_of(memory.gpu->way()), fi_strerror(error));
  if (error == FI_ENOMEM || error == FI_EAGAIN) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} (NICs can access only as much GPU memory as its BAR1 has: see `nvidia-smi -q -d MEMORY` and `ulimit -l`)",
        text));
  }
  const char* const hint = dma_buf
                               ? "the NIC's driver must import dma-bufs: mlx5 or efa of Linux 5.12 and rdma-core 34; "
                                 "or --gpu-direct peermem"
                               : "is nvidia_peermem loaded after the NIC's driver? or --gpu-direct dmabuf";
  return absl::FailedPreconditionError(fmt::format("{} ({})", text, hint));
}

}  // namespace gradrail::transport::ofi
