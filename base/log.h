#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace gradrail {

/// Sends the log to stderr, one line a record, each beginning with the task's name: `worker/1 W 12:00:01.123 text`.
/// GRADRAIL_LOG=debug|info|warn|error|off sets the level. The default is warn, so that the console of a good run has
/// its results. Another value leaves the default. The first call precedes the logs of other threads. A later one
/// changes the name.
void start_log(const std::string& task_name);

/// Receives a record: 0 debug, 1 info, 2 warning or 3 error, and its text without time and task.
using LogReceiver = std::function<void(int level, const std::string& text)>;
/// Sends the log to `receiver` instead of stderr; an empty one: to stderr again. The first call precedes the logs of
/// other threads. No call of the former receiver is under way after the return.
void send_log_to(LogReceiver receiver, int least_level);

/// Errors  INVALID_ARGUMENT: GRADRAIL_LOG is set, and its value is not a level.
absl::Status check_log_level();

/// Prints a text. fmt::print() would throw if the output cannot be written. A closed terminal or a full disk does not
/// end a run.
template <typename... Values>
void print_text(std::FILE* out, fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  [[maybe_unused]] const size_t written = std::fwrite(text.data(), 1, text.size(), out);
}

template <typename... Values>
void print_text(fmt::format_string<Values...> format, Values&&... values) {
  print_text(stdout, format, std::forward<Values>(values)...);
}

}  // namespace gradrail
