#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace gradrail::ps {

/// Who may talk to the control plane. Data connections are admitted by what was said there (ps/call_proof.h), and are
/// not encrypted themselves. Flags are named as etcd names them.
struct Security {
  std::string cert_file;        ///< PEM. ps: it speaks TLS 1.3 and nothing else; worker: shown to a ps that asks for it
  std::string key_file;         ///< of it
  std::string trusted_ca_file;  ///< worker: of the ps' certificate; ps: of workers' certificates
  bool client_cert_auth = false;  ///< ps: only workers with a certificate by trusted_ca_file
  std::string secret;             ///< of the job, which both ends prove to know; "": none
  bool insecure = false;          ///< without any of these beyond this host

  bool tls() const { return !cert_file.empty() || !trusted_ca_file.empty(); }
};

/// Errors  INVALID_ARGUMENT: a certificate without its key, and the like.
absl::Status check(const Security& security);

/// What a job's secret file holds, without a line end. Errors  NOT_FOUND, FAILED_PRECONDITION: others than its owner
/// may read it, or it is too short to be one.
absl::StatusOr<std::string> read_secret_file(const std::string& path);

/// Whoever is reachable beyond this host says how it is kept safe, or that it is not. `address` is "host:port" to
/// listen on or to connect to. Errors  FAILED_PRECONDITION names it and the flags.
absl::Status check_exposure(const Security& security, const std::string& address);

/// Errors  as of the files, which are read here.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const Security& security);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(const Security& security);

}  // namespace gradrail::ps
