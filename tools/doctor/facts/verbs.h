#pragma once

#include <map>
#include <string>
#include <utility>

#include "tools/doctor/system.h"

namespace gradrail::tools::doctor {

/// Answers of libibverbs when it opens the devices.
struct VerbsAnswer {
  struct Mtu {
    uint64_t most = 0;
    uint64_t active = 0;
  };
  std::map<std::string, std::string> opened;         ///< device → "" or why it cannot be opened
  std::map<std::pair<std::string, int>, Mtu> ports;  ///< (device, port)
};

/// Errors  Those of System::observe; NOT_FOUND: no libibverbs.
absl::StatusOr<VerbsAnswer> probe_verbs(const System& system);

}  // namespace gradrail::tools::doctor
