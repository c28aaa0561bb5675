#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"

namespace gradrail {

enum class LogLevel { debug, info, warn, error };

/// False: a record of this level is dropped.
/// Threads  Any thread.
bool is_logged(LogLevel level);

/// Writes one record. Control characters of the text are escaped: a record is one line.
/// Threads  Any thread.
void write_log(LogLevel level, std::string_view text);

/// Formats one record and writes it. A record that is dropped is not formatted.
template <LogLevel level, typename... Values>
void log(fmt::format_string<Values...> format, Values&&... values) {
  if (is_logged(level)) write_log(level, fmt::vformat(format, fmt::make_format_args(values...)));
}
template <typename... Values>
void log_info(fmt::format_string<Values...> format, Values&&... values) {
  log<LogLevel::info>(format, std::forward<Values>(values)...);
}
template <typename... Values>
void log_warning(fmt::format_string<Values...> format, Values&&... values) {
  log<LogLevel::warn>(format, std::forward<Values>(values)...);
}
template <typename... Values>
void log_error(fmt::format_string<Values...> format, Values&&... values) {
  log<LogLevel::error>(format, std::forward<Values>(values)...);
}

/// Sends the log to stderr, one line a record, each beginning with the task's name: `worker/1 W 12:00:01.123 text`.
/// GRADRAIL_LOG=debug|info|warn|error|off sets the level. The default is warn, so that the console of a good run has
/// its results. Another value leaves the default. A later call changes the name.
/// Threads  Any thread.
void start_log(const std::string& task_name);

/// Receives a record: 0 debug, 1 info, 2 warning or 3 error, and its text without time and task.
using LogReceiver = std::function<void(int level, const std::string& text)>;
/// Sends the log to `receiver` instead of stderr; an empty one: to stderr again. The receiver must not write to the log.
/// No call of the former receiver is under way after the return.
/// Threads  Any thread but one in a receiver.
void send_log_to(LogReceiver receiver, int least_level);

/// The log of another copy of this code in the process.
struct LogOfProgram {
  bool (*is_logged)(LogLevel level);
  void (*write)(LogLevel level, std::string_view text);
};
/// The log of this copy.
const LogOfProgram& own_log();
/// Sends the records of this copy, which is in a plug-in, to the log of the program. `program` must outlive the plug-in.
void send_log_to(const LogOfProgram& program);

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
