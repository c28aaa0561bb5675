#include "transport/tcp/native_error.h"

#include <cerrno>
#include <cstring>

#include "transport/common/native_error.h"

namespace gradrail::transport::tcp {
namespace {

common::ErrorMeaning meaning(int error) {
  switch (error) {
    case ECONNREFUSED:
      return {absl::StatusCode::kUnavailable, "is the peer running, and listening on this port?"};
    case EHOSTUNREACH:
    case ENETUNREACH:
      return {absl::StatusCode::kUnavailable, "check the address, the route and the firewall"};
    case ETIMEDOUT:
      return {absl::StatusCode::kUnavailable, "the host does not answer: down, or behind a firewall?"};
    case ECONNRESET:
    case EPIPE:
      return {absl::StatusCode::kUnavailable, "the peer was killed or closed the connection: see its log"};
    case EADDRINUSE:
      return {absl::StatusCode::kAlreadyExists, "choose another port, or 0 for any; see `ss -ltnp`"};
    case EADDRNOTAVAIL:
      return {absl::StatusCode::kInvalidArgument, "not an address of this host; see `ip address`"};
    case EAFNOSUPPORT:
      return {absl::StatusCode::kInvalidArgument, "this host has no such address family"};
    case EACCES:
    case EPERM:
      return {absl::StatusCode::kPermissionDenied, "ports below 1024 need root; or a firewall rule forbids it"};
    case EMFILE:
      return {absl::StatusCode::kResourceExhausted, "raise `ulimit -n`"};
    case ENFILE:
      return {absl::StatusCode::kResourceExhausted, "raise sysctl fs.file-max"};
    case ENOBUFS:
    case ENOMEM:
      return {absl::StatusCode::kResourceExhausted, "the kernel is out of socket memory"};
    default:
      return {absl::StatusCode::kInternal, ""};
  }
}

}  // namespace

absl::Status native_error(std::string_view doing, int error) {
  return common::native_error("tcp", doing, strerror(error), meaning(error));
}

}  // namespace gradrail::transport::tcp
