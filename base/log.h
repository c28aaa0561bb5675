#pragma once

#include <string>

#include "absl/status/status.h"
#include "spdlog/spdlog.h"

namespace gradrail {

/// Sends the log to stderr, one line a record, each beginning with the task's name: `worker/1 W 12:00:01.123 text`.
/// GRADRAIL_LOG=debug|info|warn|error|off sets the level. The default is warn, so that the console of a good run has
/// its results. Another value leaves the default.
void start_log(const std::string& task_name);

/// Errors  INVALID_ARGUMENT: GRADRAIL_LOG is set, and its value is not a level.
absl::Status check_log_level();

}  // namespace gradrail
