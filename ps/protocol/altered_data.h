#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace gradrail::ps {

/// Begin of the cause of a run that ended because its data was altered. Causes travel as texts, and all tasks of the
/// run exit with the code of this one.
inline constexpr std::string_view kAlteredData = "encrypted data was altered on its way";

inline bool is_altered_data(std::string_view cause) { return cause.find(kAlteredData) != std::string_view::npos; }

/// The status of a run that was aborted. DATA_LOSS, which no restart remedies: altered data.
inline absl::Status aborted_run(const std::string& cause) {
  return is_altered_data(cause) ? absl::DataLossError(cause) : absl::AbortedError(cause);
}

}  // namespace gradrail::ps
