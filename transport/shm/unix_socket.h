#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/clock.h"
#include "transport/shm/descriptor.h"
#include "transport/shm/wire.h"

/// Unix sockets in the abstract namespace: the kernel removes the name with the socket, so a killed task leaves no
/// file. The name of address `a` is "\0gradrail-shm/a". Every process on the host can list the names. The user id,
/// checked on both sides, keeps other users out.
namespace gradrail::transport::shm {

/// An unpredictable and unique name.
std::string random_address();

/// Errors  INVALID_ARGUMENT: empty, too long, or not printable. ALREADY_EXISTS.
absl::StatusOr<FileDescriptor> listen_on(const std::string& address);

/// Waits only while the listener's queue is full. Errors  UNAVAILABLE, DEADLINE_EXCEEDED, PERMISSION_DENIED.
absl::StatusOr<FileDescriptor> connect_to(const std::string& address, TimePoint deadline);

/// The process at the other end. PERMISSION_DENIED: it belongs to another user.
absl::StatusOr<pid_t> check_peer(int socket);

enum class Sent { yes, would_block };
/// Sends a packet and never blocks. A peer that has disconnected counts as sent: reading reports it.
absl::StatusOr<Sent> send_packet(int socket, const ControlMessage& message, absl::Span<const int> descriptors);

struct Packet {
  enum class Kind { nothing, message, ended };
  Kind kind = Kind::nothing;
  ControlMessage message;
  std::vector<FileDescriptor> descriptors;
};
/// Receives a packet and never blocks. INVALID_ARGUMENT: not a ControlMessage of our magic number, or descriptors that
/// did not fit.
absl::StatusOr<Packet> receive_packet(int socket);

}  // namespace gradrail::transport::shm
