#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/doctor/report.h"
#include "tools/doctor/system.h"

namespace gradrail::tools::doctor {

struct ExamineOptions {
  std::vector<std::string> servers;  ///< "host:port" of parameter servers; only a live system connects to them
  bool prove = true;                 ///< runs proofs of a live system
  std::vector<std::string> required;
  /// called with the name of each attempt, which may take time
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

/// Runs all checks and, for a live system, all proofs.
Report examine(System& system, const ExamineOptions& options);

}  // namespace gradrail::tools::doctor
