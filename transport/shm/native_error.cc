#include "transport/shm/native_error.h"

#include <cerrno>
#include <cstring>

#include "fmt/format.h"

namespace gradrail::transport::shm {
namespace {

absl::StatusCode code_of(int error) {
  switch (error) {
    case EADDRINUSE:
      return absl::StatusCode::kAlreadyExists;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ETOOMANYREFS:
      return absl::StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case EAGAIN:
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case EINVAL:
    case EBADF:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

std::string_view hint_of(int error) {
  switch (error) {
    case EADDRINUSE:
      return " (another task listens under this name)";
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
      return " (raise `ulimit -n`)";
    case ENOMEM:
      return " (check free memory and the cgroup's limit)";
    case ECONNREFUSED:
      return " (no process listens there: other host, other network namespace, or not started yet)";
    default:
      return "";
  }
}

}  // namespace

absl::Status from_errno(int error, std::string_view operation) {
  return {code_of(error), fmt::format("shm: {}: {}{}", operation, std::strerror(error), hint_of(error))};
}

}  // namespace gradrail::transport::shm
