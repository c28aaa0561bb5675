#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ps/protocol/security.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// Flags of the commands that connect to a ps: `train` and `top`.
struct SecurityFlags {
  ps::Security security;  ///< security without the secret
  std::string secret_file;
};

/// The spellings follow etcd's flags (--cert-file, --trusted-ca-file, --client-cert-auth).
void add_security_flags(CLI::App& command, SecurityFlags& flags);

/// Reads the secret. Errors  INVALID_ARGUMENT: incompatible flags. Those of ps::read_secret_file().
absl::StatusOr<ps::Security> read_security(const SecurityFlags& flags);

}  // namespace gradrail::tools
