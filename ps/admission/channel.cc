#include "ps/admission/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/admission/connection_proof.h"
#include "ps/admission/gate_text.h"
#include "ps/protocol/control_call.h"

namespace gradrail::ps {
namespace {

absl::Status no_answer() { return absl::DeadlineExceededError("no answer"); }

/// UNAVAILABLE: it may be reachable soon.
absl::Status why_unreachable(const NetAddress& address, int error) {
  if (const absl::Status lack = kernel_refusal("connect", error); absl::IsResourceExhausted(lack)) return lack;
  const bool has_no_route =
      error == ENETUNREACH || error == ENETDOWN || (error == EADDRNOTAVAIL && address.family() == AF_INET6);
  if (address.is_loopback() && has_no_route) {
    return absl::FailedPreconditionError(
        fmt::format("{}: {} is an address of this host itself, and the loopback interface is down: `ip link set lo up`",
                    std::strerror(error), address.host()));
  }
  const std::string words = socket_error_text(error, address, false);
  // EINVAL: a link-local address without an interface.
  return error == EINVAL ? absl::FailedPreconditionError(words) : absl::UnavailableError(words);
}

bool is_name(const std::string& host) {
  return host != "localhost" && !is_ip_address(host, AF_INET) && !is_ip_address(host, AF_INET6);
}

/// The first address that accepts. Errors  that of the last one.
absl::StatusOr<FileDescriptor> connect_to_host(const HostPort& where, TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<NetAddress> addresses, resolve(where.host, where.port));
  absl::Status cause;
  for (size_t i = 0; i < addresses.size(); ++i) {
    FileDescriptor fd(socket(addresses[i].family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    // An address that drops packets leaves time for the others.
    const TimePoint now = Clock::now();
    const TimePoint share = now + (deadline - now) / static_cast<int>(addresses.size() - i);
    const int error = fd ? connect_until(fd.get(), addresses[i], share) : errno;
    if (error == 0) return fd;
    cause = error == EINPROGRESS ? no_answer() : why_unreachable(addresses[i], error);
    // The resolver may give another address than on the host of the server, where /etc/hosts has its own name.
    if (is_name(where.host))
      cause = absl::Status(cause.code(), fmt::format("{} (at {})", message_of(cause), addresses[i].host()));
  }
  return cause;
}

absl::StatusOr<std::string> read_to_end(int fd, TimePoint deadline) {
  std::string text;
  std::array<char, kMaxGateTextBytes> bytes;
  while (text.size() < kMaxGateTextBytes) {
    if (const int error = wait_ready(fd, POLLIN, deadline); error != 0) {
      // Another kind of server may answer and keep the connection.
      if (!text.empty()) break;
      return error == ETIMEDOUT ? no_answer() : absl::UnavailableError(std::strerror(error));
    }
    const ssize_t got = recv(fd, bytes.data(), bytes.size() - text.size(), 0);
    if (got == 0) break;
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
      // Another kind of server may close with unread bytes after its answer.
      if (!text.empty()) break;
      return absl::UnavailableError(std::strerror(errno));
    }
    if (got > 0) text.append(bytes.data(), static_cast<size_t>(got));
  }
  return text;
}

/// Asks the gate to pass on the connection.
absl::Status send_proof(int fd, const HostPort& where, const std::string& proof) {
  const std::string request = fmt::format("CONNECT {} HTTP/1.1\r\n{}: {}\r\n\r\n", to_string(where), kProofHeader,
                                          absl::WebSafeBase64Escape(proof));
  // The buffer of a new connection is empty and takes the whole request.
  const bool is_sent = send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size());
  return is_sent ? absl::OkStatus() : absl::UnavailableError(std::strerror(errno));
}

/// Reads up to the empty line of the gate's answer. What follows belongs to the server behind the gate.
absl::Status wait_admitted(int fd, TimePoint deadline) {
  std::string answer;
  while (!is_whole_request(answer) && answer.size() < kMaxGateTextBytes) {
    if (const int error = wait_ready(fd, POLLIN, deadline); error != 0)
      return error == ETIMEDOUT ? no_answer() : absl::UnavailableError(std::strerror(error));
    char byte = 0;
    const ssize_t got = recv(fd, &byte, 1, 0);
    if (got == 0) return absl::UnavailableError("the process there closed the connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR) return absl::UnavailableError(std::strerror(errno));
    if (got == 1) answer += byte;
  }
  if (answer.starts_with("HTTP/1.1 200 ")) return absl::OkStatus();
  // The secret is right, as the proof shows. The challenge was too old, or another process has the port by now.
  return absl::UnavailableError("the process there refused the proof of the secret");
}

/// Sends the proof, so that the server logs the refusal: a person who waits for this task reads only that log.
void let_server_log(const HostPort& where, const std::string& proof, TimePoint deadline) {
  const absl::StatusOr<FileDescriptor> fd = connect_to_host(where, deadline);
  if (!fd.ok()) return;
  if (send_proof(fd->get(), where, proof).ok()) read_to_end(fd->get(), deadline).IgnoreError();
}

/// The proof for one connection.
absl::StatusOr<std::string> request_proof(const HostPort& where, const std::string& secret, TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(const FileDescriptor fd, connect_to_host(where, deadline));
  const std::string client_challenge = new_client_challenge();
  const std::string request = fmt::format("GET {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", kChallengePath,
                                          absl::WebSafeBase64Escape(client_challenge), to_string(where));
  // The buffer of a new connection is empty and takes the whole request.
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    return absl::UnavailableError(std::strerror(errno));
  GRADRAIL_ASSIGN_OR_RETURN(const std::string answer, read_to_end(fd.get(), deadline));
  // A process that ends closes the connections that it has not accepted. A server with TLS and without a gate, too.
  if (answer.empty())
    return absl::UnavailableError("the process there closed the connection: it ended, or is not a task of gradrail");
  GRADRAIL_ASSIGN_OR_RETURN(const GateAnswer parsed, parse_gate_answer(answer));
  absl::StatusOr<std::string> proof = prove_connection(secret, client_challenge, parsed.challenge, parsed.answer);
  if (!proof.ok()) let_server_log(where, refused_proof(secret, parsed.challenge), deadline);
  return proof;
}

}  // namespace

absl::StatusOr<FileDescriptor> open_connection(const std::string& address, const std::string& secret,
                                               Duration timeout) {
  const TimePoint deadline = Clock::now() + timeout;
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort where, parse_host_port(address));
  GRADRAIL_ASSIGN_OR_RETURN(const std::string proof, request_proof(where, secret, deadline));
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor fd, connect_to_host(where, deadline));
  GRADRAIL_RETURN_IF_ERROR(send_proof(fd.get(), where, proof));
  GRADRAIL_RETURN_IF_ERROR(wait_admitted(fd.get(), deadline));
  return fd;
}

absl::Status check_packet_size(const std::string& address, Duration timeout) {
  const TimePoint deadline = Clock::now() + timeout;
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort where, parse_host_port(address));
  GRADRAIL_ASSIGN_OR_RETURN(const FileDescriptor fd, connect_to_host(where, deadline));
  send_small_part(fd.get());
  // A process that is stopped accepts nothing, and acknowledges nothing when its backlog is full.
  if (wait_acknowledged(fd.get(), deadline) != 0) return absl::OkStatus();
  send_large_part(fd.get());
  if (wait_acknowledged(fd.get(), deadline) != ETIMEDOUT) return absl::OkStatus();
  return absl::FailedPreconditionError(kLargePacketsLost);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> open_channel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials, const std::string& secret,
    grpc::ChannelArguments arguments, Duration timeout) {
  GRADRAIL_ASSIGN_OR_RETURN(const HostPort where, parse_host_port(address));
  GRADRAIL_ASSIGN_OR_RETURN(const std::string proof, request_proof(where, secret, Clock::now() + timeout));
  // The proxy variables of the environment are for the internet, not for tasks of a cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // The channel has its own connection: gRPC would share the connection of another proof, or the pause after its
  // failure.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  // A second connection would need another proof.
  arguments.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, INT_MAX);
  // gRPC's names for the CONNECT request to a proxy, here the gate. Its public headers do not have them.
  arguments.SetString("grpc.http_connect_server", to_string(where));
  arguments.SetString("grpc.http_connect_headers",
                      fmt::format("{}:{}", kProofHeader, absl::WebSafeBase64Escape(proof)));
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace gradrail::ps
