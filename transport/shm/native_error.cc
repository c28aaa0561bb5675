#include "transport/shm/native_error.h"

#include <cerrno>
#include <cstring>

#include "transport/common/native_error.h"

namespace gradrail::transport::shm {
namespace {

using absl::StatusCode;

common::ErrorMeaning errno_meaning(int error) {
  switch (error) {
    case EADDRINUSE:
      return {StatusCode::kAlreadyExists, "another task listens under this name"};
    case EMFILE:
    case ENFILE:
    // sendmsg(): more descriptors are on their way between processes than the limit of open files permits (unix(7)).
    case ETOOMANYREFS:
      return {StatusCode::kResourceExhausted, "raise `ulimit -n`"};
    case ENOMEM:
      return {StatusCode::kResourceExhausted, "check free memory and the limit of the cgroup"};
    case EFBIG:
      return {StatusCode::kResourceExhausted, "raise `ulimit -f`"};
    case ENOBUFS:
      return {StatusCode::kResourceExhausted, ""};
    case EACCES:
    case EPERM:
      return {StatusCode::kPermissionDenied, ""};
    // A blocking connect() to a full queue ends with EAGAIN when SO_SNDTIMEO has passed.
    case EAGAIN:
    case ETIMEDOUT:
      return {StatusCode::kDeadlineExceeded, ""};
    case EINVAL:
    case EBADF:
      return {StatusCode::kInvalidArgument, ""};
    case ECONNREFUSED:
      return {StatusCode::kUnavailable,
              "no process listens there: other host, other network namespace, or not started yet"};
    default:
      return {StatusCode::kUnavailable, ""};
  }
}

}  // namespace

absl::Status from_errno(int error, std::string_view operation) {
  return common::native_error("shm", operation, std::strerror(error), errno_meaning(error));
}

}  // namespace gradrail::transport::shm
