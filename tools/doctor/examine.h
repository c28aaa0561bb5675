#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/doctor/report.h"
#include "tools/doctor/system.h"

namespace gradrail::tools::doctor {

struct ExamineOptions {
  std::vector<std::string> servers;  ///< "host:port" of parameter servers; only a live system tries them
  bool prove = true;                 ///< of a live system
  std::vector<std::string> required;
  /// Hears what is being tried, while that takes its time.
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

/// All checks and, of a live system, all proofs.
Report examine(System& system, const ExamineOptions& options);

}  // namespace gradrail::tools::doctor
