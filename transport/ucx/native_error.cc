#include "transport/ucx/native_error.h"

#include <sys/resource.h>

#include "fmt/format.h"

namespace gradrail::transport::ucx {
namespace {

struct Meaning {
  absl::StatusCode code;
  std::string_view hint;
};

Meaning meaning(ucs_status_t status) {
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
      return {absl::StatusCode::kUnavailable, "the peer or the network between does not answer any more"};
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
      return {absl::StatusCode::kUnavailable, "the peer ended or was killed: see its log"};
    case UCS_ERR_REJECTED:
      return {absl::StatusCode::kUnavailable, "the peer refused the connection: see its log"};
    case UCS_ERR_CANCELED:
      return {absl::StatusCode::kUnavailable, ""};
    case UCS_ERR_IO_ERROR:
      return {absl::StatusCode::kUnavailable, "the peer is gone, its memory is, or the device failed: see `dmesg`"};
    case UCS_ERR_SHMEM_SEGMENT:
      return {absl::StatusCode::kResourceExhausted,
              "shared memory ran out: see `df /dev/shm` and `sysctl kernel.shm*`"};
    case UCS_ERR_INVALID_PARAM:
      return {absl::StatusCode::kInvalidArgument, "see the UCX_* variables of the environment"};
    default:
      return {absl::StatusCode::kUnavailable, ""};
  }
}

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{} KiB", limit.rlim_cur / 1024);
}

}  // namespace

absl::Status native_error(std::string_view doing, ucs_status_t status) {
  const Meaning what = meaning(status);
  std::string text = fmt::format("ucx: {}: {}", doing, ucs_status_string(status));
  if (!what.hint.empty()) text += fmt::format(" ({})", what.hint);
  return {what.code, text};
}

absl::Status registration_error(size_t bytes, ucs_status_t status) {
  return absl::ResourceExhaustedError(fmt::format(
      "ucx: register {} bytes: {}; the limit on locked memory is {} (raise it by `ulimit -l unlimited`, for services "
      "by "
      "LimitMEMLOCK=infinity in the systemd unit, for logins by a memlock line in /etc/security/limits.conf)",
      bytes, ucs_status_string(status), locked_memory_limit()));
}

}  // namespace gradrail::transport::ucx
