#include "transport/tcp/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "base/parse_number.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/tcp/native_error.h"

namespace gradrail::transport::tcp {
namespace {

/// Bounds what the kernel holds of ours beyond the peer's window: a message overtakes bulk only before that point. One
/// frame; on loopback no value from 16 KiB to unbounded changed throughput or latency.
constexpr int kMaxUnsentBytes = 256 * 1024;

/// Round trips within a site are shorter, also through several switches. The handshake has measured it.
constexpr uint32_t kLongPathUs = 5000;

/// Size up to which one copy costs less than the gathering of the pieces in the kernel, which takes 0.25 us for four
/// pieces.
constexpr size_t kJoinedBytes = 1024;

void set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

}  // namespace

absl::StatusOr<HostPort> parse_host_port(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("tcp: '{}' is not host:port or [v6]:port ({})", text, why));
  };
  // The last colon counts: an IPv6 address contains colons.
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (!host.empty() && host.front() == '[') {
    if (host.back() != ']' || host.size() < 3) return bad("unfinished brackets");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad("an IPv6 address needs brackets");
  }
  const std::optional<uint16_t> number = parse_number<uint16_t>(port);
  if (!number) return bad("port must be 0 to 65535");
  return HostPort{std::string(host), *number};
}

absl::StatusOr<std::vector<Address>> resolve(const HostPort& where) {
  absl::StatusOr<std::vector<Address>> found = gradrail::resolve(where.host, where.port);
  if (found.ok()) return found;
  return absl::Status(found.status().code(), fmt::format("tcp: {}", message_of(found.status())));
}

void tune(int fd, const SocketOptions& options) {
  // SendQueue gathers small frames already. Nagle's algorithm would hold the last one back until the peer acknowledges.
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMaxUnsentBytes);
  // A host that vanishes sends nothing: an idle connection is probed, so that there is something to acknowledge.
  // TCP_USER_TIMEOUT is not suitable: Linux also ends by it a peer that acknowledges but has not read for this time (a
  // checkpoint, a debugger); unanswered() describes it.
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(options.vanish_timeout);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, static_cast<int>(timeout.count() / 2000)));
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, static_cast<int>(timeout.count() / 5000)));
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  if (options.buffer_bytes > 0) {
    set(fd, SOL_SOCKET, SO_SNDBUF, options.buffer_bytes);
    set(fd, SOL_SOCKET, SO_RCVBUF, options.buffer_bytes);
  }
}

void adapt_to_path(int fd) {
  static constexpr std::string_view kLocalControl = "reno";
  static constexpr std::string_view kLongPathControl = "bbr";
  const Address peer = peer_address(fd);
  if (peer.is_loopback() || peer.host() == local_address(fd).host()) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kLocalControl.data(), kLocalControl.size());
    return;
  }
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || info.tcpi_rtt < kLongPathUs) return;
  std::array<char, 16> name{};  // TCP_CA_NAME_MAX
  bytes = name.size();
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes) != 0) return;
  const std::string_view chosen(name.data());
  if (chosen != "cubic" && chosen != "reno") return;  // an operator has chosen another one
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kLongPathControl.data(), kLongPathControl.size());
}

bool unanswered(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  // One of them may be under way; of two the first has had the time to be answered. An answer sets both back to 0.
  return info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2;
}

ssize_t send_pieces(int fd, absl::Span<const iovec> pieces, uint64_t bytes) {
  // MSG_NOSIGNAL: the loss of the peer is EPIPE here; SIGPIPE would end the process.
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  if (bytes <= kJoinedBytes) {
    std::array<std::byte, kJoinedBytes> joined;
    std::byte* end = joined.data();
    for (const iovec& piece : pieces)
      end = std::copy_n(static_cast<const std::byte*>(piece.iov_base), piece.iov_len, end);
    return send(fd, joined.data(), bytes, kFlags);
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return sendmsg(fd, &message, kFlags);
}

absl::StatusOr<FileDescriptor> listen_at(const Address& address) {
  FileDescriptor listener;
  const int error = gradrail::listen_at(address, false, listener);
  const std::string doing = fmt::format("listen at {}", address.text());
  if (lacks_port(error, address, true))
    return absl::ResourceExhaustedError(fmt::format("tcp: {}: {}", doing, socket_error_text(error, address, true)));
  if (error != 0) return native_error(doing, error);
  return listener;
}

absl::StatusOr<FileDescriptor> connect_to(const Address& address, const Address* source, const SocketOptions& options,
                                          TimePoint deadline) {
  std::string doing = fmt::format("connect to {}", address.text());
  FileDescriptor fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return native_error(doing, errno);
  // The call precedes connect(): buffer sizes that are set later have no effect on the connection (tcp(7)).
  tune(fd.get(), options);
  if (source != nullptr) {
    doing += fmt::format(" from {}", source->text());
    // The kernel then chooses the port at connect() and can share it between connections to different peers (ip(7)).
    set(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (bind(fd.get(), source->get(), source->bytes) != 0) return native_error(doing, errno);
  }
  const int error = connect_until(fd.get(), address, deadline);
  if (error == EINPROGRESS) {
    return absl::DeadlineExceededError(
        fmt::format("tcp: {}: no answer in time (host down, or a firewall that drops?)", doing));
  }
  if (lacks_port(error, address, false))
    return absl::ResourceExhaustedError(fmt::format("tcp: {}: {}", doing, socket_error_text(error, address, false)));
  if (error != 0) return native_error(doing, error);
  adapt_to_path(fd.get());
  return fd;
}

}  // namespace gradrail::transport::tcp
