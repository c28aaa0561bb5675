#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "spdlog/spdlog.h"

namespace gradrail {

/// Sends the log to stderr, one line a record, each beginning with the task's name: `worker/1 W 12:00:01.123 text`.
/// GRADRAIL_LOG=debug|info|warn|error|off sets the level. The default is warn, so that the console of a good run has
/// its results. Another value leaves the default. The first call comes before other threads log. A later one
/// changes the name.
void start_log(const std::string& task_name);

/// Receives a record: 0 debug, 1 info, 2 warning or 3 error, and its text without time and task.
using LogReceiver = std::function<void(int level, const std::string& text)>;
/// Sends the log to `receiver` instead of stderr; an empty one: to stderr again. The first call comes before other
/// threads log. No call of the receiver before is under way after the return.
void send_log_to(LogReceiver receiver, int least_level);

/// Errors  INVALID_ARGUMENT: GRADRAIL_LOG is set, and its value is not a level.
absl::Status check_log_level();

}  // namespace gradrail
