#pragma once

#include <string>

#include "absl/status/status.h"
#include "ps/protocol/security.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

struct TopFlags {
  std::string cluster;  ///< file
  std::string ps_hosts;
  Security security;
  std::string secret_file;
  bool once = false;
  // The number is at most one request: each task answers a limited number of them.
  bool dump = false;
};

void add_top_flags(CLI::App& command, TopFlags& flags);

/// `gradrail top`: what the tasks of a cluster are doing, once or until q or Ctrl-C.
/// Errors  INVALID_ARGUMENT: no cluster. UNAVAILABLE: once, and not one ps answered. FAILED_PRECONDITION: no terminal.
absl::Status run_top(const TopFlags& flags);

}  // namespace gradrail::tools
