#pragma once

#include <string>

#include "absl/status/status.h"
#include "ps/protocol/security.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// Shared by the commands that talk to a ps: `train`, `run` and `top`. The spellings follow etcd's flags (--cert-file,
/// --trusted-ca-file, --client-cert-auth).
void add_security_flags(CLI::App& command, Security& security, std::string& secret_file);

/// Checks the flags, and reads the secret if there is a file.
/// Errors  INVALID_ARGUMENT: flags that do not fit together; as of read_secret_file().
absl::Status read_secret(Security& security, const std::string& secret_file);

}  // namespace gradrail::tools
