#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "gradrail/clock.h"

namespace gradrail::transport::tcp {

using Address = NetAddress;
struct HostPort {
  std::string host;  ///< "" is any address
  uint16_t port = 0;
};

/// Errors  INVALID_ARGUMENT: neither "host:port" nor "[v6]:port".
absl::StatusOr<HostPort> parse_host_port(std::string_view text);

/// Calls gradrail::resolve(); the error names tcp.
absl::StatusOr<std::vector<Address>> resolve(const HostPort& where);

struct SocketOptions {
  int buffer_bytes = 0;  ///< 0: the kernel's own, which grow with the path; fixed 0.25 to 4 MiB were no faster
  Duration vanish_timeout = std::chrono::seconds(10);  ///< a host that acknowledges nothing for so long is lost
};

/// Options of every connected socket. Errors are not reported: each option only improves on a working connection.
void tune(int fd, const SocketOptions& options);

/// Selects the congestion control of a connected socket. Within one host it is Reno, which each kernel has: no packet
/// is lost there, and BBR would delay packets. On a long path it is BBR, if the host's own choice is cubic or reno.
/// These two fill the queues of a slow link, and heartbeats then wait there for seconds. With 1 % of lost packets they
/// lose most of the rate. Without the permission (tcp_allowed_congestion_control) the socket keeps the host's choice.
void adapt_to_path(int fd);

/// Whether the peer's kernel leaves retransmissions unanswered. A peer that answers with a full receive window does not
/// count: it still runs and will continue to read.
bool unanswered(int fd);

/// Sends up to `bytes`, the length of all pieces, with one system call. Returns its result; never SIGPIPE.
ssize_t send_pieces(int fd, absl::Span<const iovec> pieces, uint64_t bytes);

/// A non-blocking socket listening at `address`.
absl::StatusOr<FileDescriptor> listen_at(const Address& address);

/// A connected non-blocking socket. `source` may be null.
/// Errors  UNAVAILABLE, DEADLINE_EXCEEDED; each names the address.
absl::StatusOr<FileDescriptor> connect_to(const Address& address, const Address* source, const SocketOptions& options,
                                          TimePoint deadline);

}  // namespace gradrail::transport::tcp
