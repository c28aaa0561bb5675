#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "gradrail/clock.h"

namespace gradrail::ps {

/// Opens a connection through the gate of a server (gate.h). Both sides prove that they have `secret`; "": the job has
/// none. gRPC connects the channel at its first call, and once only: after a loss, open another channel.
/// Blocks as long as the resolver does, and up to `timeout`.
/// Errors  UNAVAILABLE: no process listens there, or its host is unknown. DEADLINE_EXCEEDED: no answer in time.
///         UNAUTHENTICATED: the secrets differ. FAILED_PRECONDITION: the process has no gate. INVALID_ARGUMENT: not an
///         address.
absl::StatusOr<std::shared_ptr<grpc::Channel>> open_channel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials, const std::string& secret,
    grpc::ChannelArguments arguments, Duration timeout);

/// The same for a protocol other than gRPC: a non-blocking socket, which belongs to the server behind the gate.
/// Errors  Those of open_channel().
absl::StatusOr<FileDescriptor> open_connection(const std::string& address, const std::string& secret, Duration timeout);

/// Whether large packets reach the server at the address.
/// Errors  FAILED_PRECONDITION: small packets pass and large ones do not. Others: no connection.
absl::Status check_packet_size(const std::string& address, Duration timeout);

}  // namespace gradrail::ps
