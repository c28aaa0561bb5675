#include "tools/security_flags.h"

#include "CLI/CLI.hpp"
#include "base/status.h"

namespace gradrail::tools {

void add_security_flags(CLI::App& command, Security& security, std::string& secret_file) {
  command.option_defaults()->group("Security");
  // Two spellings each: dashes as in etcd, underscores as in the flags of TensorFlow.
  command
      .add_option("--cert-file,--cert_file", security.cert_file,
                  "PEM certificate: a ps with a certificate uses TLS 1.3; a worker sends its certificate to a ps that "
                  "requires one")
      ->take_last();
  command.add_option("--key-file,--key_file", security.key_file, "PEM key of --cert-file")->take_last();
  command
      .add_option("--trusted-ca-file,--trusted_ca_file", security.trusted_ca_file,
                  "PEM certificate of the authority that must have signed the certificate of the peer")
      ->take_last();
  command.add_flag("--client-cert-auth,--client_cert_auth", security.client_cert_auth,
                   "ps: only workers with a certificate by --trusted-ca-file");
  command
      .add_option("--secret-file,--secret_file", secret_file,
                  "file, mode 0600, with the secret of the job: only tasks that have it may join")
      ->take_last();
  command.add_flag("--insecure", security.insecure, "permit other hosts without TLS or a secret: any process may join");
}

absl::Status read_secret(Security& security, const std::string& secret_file) {
  // Checked before the file is read: a contradiction of flags is the better message.
  GRADRAIL_RETURN_IF_ERROR(validate(security));
  if (secret_file.empty()) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(security.secret, read_secret_file(secret_file));
  return absl::OkStatus();
}

}  // namespace gradrail::tools
