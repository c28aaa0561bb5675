#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace gradrail::transport::tcp {

/// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

/// An IPv4 or IPv6 address with its port.
struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  /// "10.0.0.1:2223" or "[fd00::1]:2223".
  std::string text() const;
};

struct HostPort {
  std::string host;  ///< "" is any address
  std::string port;
};

/// Errors  INVALID_ARGUMENT: neither "host:port" nor "[v6]:port".
absl::StatusOr<HostPort> parse_host_port(std::string_view text);

/// All addresses of a host, in the resolver's order. Blocks as long as the resolver does.
/// Errors  UNAVAILABLE: the resolver's words.
absl::StatusOr<std::vector<Address>> resolve(const HostPort& where);

Address local_address(int fd);
Address peer_address(int fd);

struct SocketOptions {
  int buffer_bytes = 0;  ///< 0: the kernel's own, which grow with the path; fixed 0.25 to 4 MiB were no faster
  Duration vanish_timeout = std::chrono::seconds(10);  ///< a host that acknowledges nothing for so long is lost
};

/// Options of every connected socket. Errors are not reported: each option only improves on a working connection.
void tune(int fd, const SocketOptions& options);

/// Whether the peer's kernel leaves retransmissions unanswered. A peer that answers with a full receive window does not
/// count: it still runs and will continue to read.
bool unanswered(int fd);

/// A non-blocking socket listening at `address`.
absl::StatusOr<Fd> listen_at(const Address& address);

/// A connected non-blocking socket. `source` may be null.
/// Errors  UNAVAILABLE, DEADLINE_EXCEEDED; each names the address.
absl::StatusOr<Fd> connect_to(const Address& address, const Address* source, const SocketOptions& options,
                              TimePoint deadline);

}  // namespace gradrail::transport::tcp
