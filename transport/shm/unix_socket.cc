#include "transport/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "transport/shm/native_error.h"

namespace gradrail::transport::shm {
namespace {

constexpr std::string_view kNamePrefix = "gradrail-shm/";
/// A cluster's workers may all connect while the server is busy with one of them.
constexpr int kListenBacklog = 256;

struct UnixAddress {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

absl::StatusOr<UnixAddress> unix_address(const std::string& address) {
  UnixAddress result;
  const bool printable = std::all_of(address.begin(), address.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (address.empty() || !printable || 1 + kNamePrefix.size() + address.size() > sizeof(result.name.sun_path)) {
    return absl::InvalidArgumentError(
        fmt::format("shm: '{}' is not an address: give a printable name of at most {} characters", address,
                    sizeof(result.name.sun_path) - 1 - kNamePrefix.size()));
  }
  result.name.sun_family = AF_UNIX;
  char* end = result.name.sun_path + 1;  // the leading zero byte selects the abstract namespace
  end = std::copy(kNamePrefix.begin(), kNamePrefix.end(), end);
  end = std::copy(address.begin(), address.end(), end);
  GRADRAIL_CHECK(end <= result.name.sun_path + sizeof(result.name.sun_path));
  // The length ends an abstract name; it has no terminating zero byte (unix(7)).
  result.bytes = static_cast<socklen_t>(end - reinterpret_cast<char*>(&result.name));
  return result;
}

absl::StatusOr<FileDescriptor> open_socket(int flags) {
  FileDescriptor socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!socket_fd) return from_errno(errno, "socket");
  return socket_fd;
}

/// Limits the wait of connect() in a full queue. Zero would mean no limit.
absl::Status limit_wait(int socket, TimePoint deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()).count();
  if (left <= 0) return absl::DeadlineExceededError("shm: connect: the deadline has passed");
  // SO_SNDTIMEO limits connect() as well (socket(7)).
  const timeval limit{.tv_sec = left / 1000000, .tv_usec = left % 1000000};
  if (setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0) return from_errno(errno, "SO_SNDTIMEO");
  return absl::OkStatus();
}

union ControlBuffer {
  cmsghdr alignment;
  char bytes[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
};

/// Owned from here on, also when the packet is refused for another reason.
std::vector<FileDescriptor> take_descriptors(msghdr& header) {
  std::vector<FileDescriptor> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      // CMSG_DATA is not aligned for an int (cmsg(3)).
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

}  // namespace

std::string random_address() { return fmt::format("{}-{:016x}{:016x}", getpid(), random_bits(), random_bits()); }

absl::StatusOr<FileDescriptor> listen_on(const std::string& address) {
  GRADRAIL_ASSIGN_OR_RETURN(UnixAddress name, unix_address(address));
  GRADRAIL_ASSIGN_OR_RETURN(FileDescriptor listener, open_socket(SOCK_NONBLOCK));
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&name.name), name.bytes) != 0) {
    return from_errno(errno, fmt::format("listen on {}", address));
  }
  if (listen(listener.get(), kListenBacklog) != 0) return from_errno(errno, fmt::format("listen on {}", address));
  return listener;
}

absl::StatusOr<FileDescriptor> connect_to(const std::string& address, TimePoint deadline) {
  GRADRAIL_ASSIGN_OR_RETURN(UnixAddress name, unix_address(address));
  absl::StatusOr<FileDescriptor> socket_fd = open_socket(0);  // blocking: only a blocking connect waits in the queue
  if (!socket_fd.ok()) return socket_fd.status();
  int result = -1;
  do {
    GRADRAIL_RETURN_IF_ERROR(limit_wait(socket_fd->get(), deadline));
    result = ::connect(socket_fd->get(), reinterpret_cast<sockaddr*>(&name.name), name.bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return from_errno(errno, fmt::format("connect to {}", address));
  return socket_fd;
}

absl::StatusOr<pid_t> check_peer(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  // The kernel recorded these credentials at connect() or listen(): the peer cannot claim others.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return from_errno(errno, "SO_PEERCRED");
  if (peer.uid != geteuid()) {
    return absl::PermissionDeniedError(
        fmt::format("shm: peer process {} runs as user {}, this one as {} (run both as the same user)", peer.pid,
                    peer.uid, geteuid()));
  }
  return peer.pid;
}

absl::StatusOr<Sent> send_packet(int socket, const ControlMessage& message, absl::Span<const int> descriptors) {
  GRADRAIL_CHECK(descriptors.size() <= kMaxDescriptors);  // the size of ControlBuffer
  iovec body{.iov_base = const_cast<ControlMessage*>(&message), .iov_len = sizeof(message)};
  msghdr header{};
  header.msg_iov = &body;
  header.msg_iovlen = 1;
  ControlBuffer control{};
  if (!descriptors.empty()) {
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(part), descriptors.data(), sizeof(int) * descriptors.size());
  }
  // A SOCK_SEQPACKET socket takes a packet whole or not, so no rest is left to send.
  while (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return Sent::would_block;
    if (errno == EPIPE || errno == ECONNRESET) return Sent::yes;
    return from_errno(errno, "send to peer");
  }
  return Sent::yes;
}

absl::StatusOr<Packet> receive_packet(int socket) {
  Packet packet;
  iovec body{.iov_base = &packet.message, .iov_len = sizeof(packet.message)};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &body;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  ssize_t bytes = -1;
  int ends_seen = 0;
  do {
    // recvmsg() overwrites this length, also before a repeated call.
    header.msg_controllen = sizeof(control.bytes);
    bytes = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes == 0) ++ends_seen;
    // A peer that closes with unread packets causes one reset; its earlier packets are still queued behind it.
    // A peer may also send its last packet and close just after the kernel has checked the queue. The second look finds
    // that packet.
  } while ((bytes < 0 && (errno == EINTR || errno == ECONNRESET)) || (bytes == 0 && ends_seen == 1));
  if (bytes < 0 && errno == EAGAIN) return packet;
  if (bytes < 0) return from_errno(errno, "receive from peer");
  packet.descriptors = take_descriptors(header);
  if (bytes == 0) {
    packet.kind = Packet::Kind::ended;
    return packet;
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return absl::InvalidArgumentError("descriptors that could not be received (too many, or raise `ulimit -n`)");
  }
  if ((header.msg_flags & MSG_TRUNC) != 0 || bytes != sizeof(packet.message) || packet.message.magic != kMagic) {
    return absl::InvalidArgumentError(fmt::format("a packet of {} bytes that gradrail did not write", bytes));
  }
  packet.kind = Packet::Kind::message;
  return packet;
}

}  // namespace gradrail::transport::shm
