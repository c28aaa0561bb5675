#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradrail/security.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace gradrail::ps {

/// An address beyond this host requires authentication or `insecure`. `address` is "host:port", to listen on or to
/// connect to.
/// Errors  FAILED_PRECONDITION names the address and the flags.
absl::Status check_exposure(const Security& security, const std::string& address);
/// The same for a host without a port. `address` names it in the error.
absl::Status check_exposure_of_host(const Security& security, const std::string& host, const std::string& address);

/// Errors  those of validate(), and of the files, which are read here.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const Security& security);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(const Security& security);

}  // namespace gradrail::ps
