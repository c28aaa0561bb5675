#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/doctor/report.h"
#include "tools/doctor/system.h"

namespace gradrail::tools::doctor {

struct ExamineOptions {
  std::vector<std::string> servers;  ///< "host:port" of parameter servers
  bool prove = true;                 ///< runs the transfers
  std::vector<std::string> required;
  /// called with the name of each attempt, which may take time
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

/// Runs all checks, and all proofs if they are wanted.
Report examine(const System& system, const ExamineOptions& options);

}  // namespace gradrail::tools::doctor
