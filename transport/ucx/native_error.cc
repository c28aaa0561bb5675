#include "transport/ucx/native_error.h"

#include "transport/common/native_error.h"

namespace gradrail::transport::ucx {
namespace {

common::ErrorMeaning meaning(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return {absl::StatusCode::kResourceExhausted, "is `ulimit -l` large enough for the adapter's queues?"};
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

}  // namespace

absl::Status native_error(std::string_view doing, ucs_status_t status) {
  return common::native_error("ucx", doing, ucs_status_string(status), meaning(status));
}

absl::Status registration_error(size_t bytes, ucs_status_t status) {
  return common::locked_memory_error("ucx", bytes, ucs_status_string(status));
}

}  // namespace gradrail::transport::ucx
