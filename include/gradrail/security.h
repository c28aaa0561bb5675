#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gradrail/export.h"

namespace gradrail {

/// Authentication and encryption of the control plane, and encryption of data. Data connections are admitted by a token
/// of the control plane. The flags have etcd's names.
struct Security {
  std::string cert_file;            ///< PEM. ps: it then accepts TLS 1.3 only. Worker: shown to a ps that asks for it
  std::string key_file;             ///< private key of cert_file
  std::string trusted_ca_file;      ///< worker: issuer of the ps' certificate; ps: issuer of workers' certificates
  bool system_authorities = false;  ///< client: TLS with the system's authorities if trusted_ca_file is empty
  bool client_cert_auth = false;    ///< ps: accepts only workers with a certificate by trusted_ca_file
  std::string secret;               ///< secret of the job; each end proves that it has it; "": none
  bool encrypt_data = false;        ///< data connections between hosts are encrypted; needs a secret or TLS
  bool insecure = false;            ///< allows addresses beyond this host without any of these

  bool tls() const { return !cert_file.empty() || !trusted_ca_file.empty() || system_authorities; }
};

/// Errors  INVALID_ARGUMENT: settings that require others, such as a certificate without its key.
GRADRAIL_EXPORT absl::Status validate(const Security& security);

/// Whether the control plane can exchange the keys of encrypted data.
/// Errors  INVALID_ARGUMENT: encrypt_data without a secret and without TLS.
GRADRAIL_EXPORT absl::Status check_encryption(const Security& security);

/// The content of a job's secret file without a line end.
/// Errors  NOT_FOUND. FAILED_PRECONDITION: other users may read it, or it is too short for a secret.
GRADRAIL_EXPORT absl::StatusOr<std::string> read_secret_file(const std::string& path);

}  // namespace gradrail
