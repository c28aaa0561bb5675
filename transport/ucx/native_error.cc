#include "transport/ucx/native_error.h"

#include <sys/statvfs.h>

#include <cstdint>
#include <string>

#include "fmt/format.h"
#include "transport/common/native_error.h"

namespace gradrail::transport::ucx {
namespace {

common::ErrorMeaning meaning(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return {absl::StatusCode::kResourceExhausted, ""};
    case UCS_ERR_NO_DEVICE:
      return {absl::StatusCode::kUnavailable,
              "no device fits UCX_TLS and UCX_NET_DEVICES; `ucx_info -d` lists what there is"};
    case UCS_ERR_UNREACHABLE:
      return {absl::StatusCode::kUnavailable,
              "the two ends share no UCX transport that can carry messages and report errors; UCX_TLS=rc_verbs or "
              "dc_mlx5 has no auxiliary transport for the wire-up: use rc or dc, or add ud_verbs"};
    case UCS_ERR_UNSUPPORTED:
      return {absl::StatusCode::kUnavailable, "no transport of UCX_TLS can do this; unset it or add another"};
    case UCS_ERR_ENDPOINT_TIMEOUT:
      return {absl::StatusCode::kUnavailable, "the peer does not respond, or the network path to it is lost"};
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
      return {absl::StatusCode::kUnavailable, "the peer exited or was killed: see its log"};
    case UCS_ERR_REJECTED:
      return {absl::StatusCode::kUnavailable, "the peer refused the connection: see its log"};
    case UCS_ERR_CANCELED:
      return {absl::StatusCode::kUnavailable, ""};
    case UCS_ERR_IO_ERROR:
      return {absl::StatusCode::kUnavailable, "the peer or its memory is lost, or the device failed: see `dmesg`"};
    case UCS_ERR_SHMEM_SEGMENT:
      return {absl::StatusCode::kResourceExhausted,
              "shared memory ran out: see `df /dev/shm` and `sysctl kernel.shm*`"};
    case UCS_ERR_INVALID_PARAM:
      return {absl::StatusCode::kInvalidArgument, "see the UCX_* variables of the environment"};
    default:
      return {absl::StatusCode::kUnavailable, ""};
  }
}

/// UCX has queues in the shared memory of the host, of about 8 MiB for each process, besides those of an adapter.
std::string hint_of_memory() {
  constexpr uint64_t kEnough = uint64_t{64} << 20;
  struct statvfs found {};
  if (statvfs("/dev/shm", &found) == 0 && uint64_t{found.f_bavail} * found.f_frsize < kEnough) {
    return fmt::format(
        "/dev/shm has {} KiB free, which is too little: `mount -o remount,size=1g /dev/shm`, or "
        "--shm-size of a container",
        uint64_t{found.f_bavail} * found.f_frsize / 1024);
  }
  return "is `ulimit -l` large enough for the adapter's queues?";
}

}  // namespace

absl::Status native_error(std::string_view doing, ucs_status_t status) {
  const bool lacks_memory =
      status == UCS_ERR_NO_MEMORY || status == UCS_ERR_NO_RESOURCE || status == UCS_ERR_EXCEEDS_LIMIT;
  const std::string hint = lacks_memory ? hint_of_memory() : std::string(meaning(status).hint);
  const absl::Status error =
      common::native_error("ucx", doing, ucs_status_string(status), {meaning(status).code, hint});
  const bool may_be_excluded = status == UCS_ERR_UNREACHABLE || status == UCS_ERR_UNSUPPORTED;
  return may_be_excluded ? common::with_environment(error, "UCX_") : error;
}

absl::Status registration_error(size_t bytes, ucs_status_t status) {
  return common::locked_memory_error("ucx", bytes, ucs_status_string(status));
}

}  // namespace gradrail::transport::ucx
