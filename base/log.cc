#include "base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "base/mutex.h"
#include "base/status.h"

namespace gradrail {
namespace {

constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warn", "error"};
constexpr int kOff = kLevels.size();

/// The least level of GRADRAIL_LOG that is logged; nullopt for a value that is not a level.
std::optional<int> level_of_environment() {
  const char* const text = std::getenv("GRADRAIL_LOG");
  // A shell makes an empty value of an unset variable.
  if (text == nullptr || *text == '\0') return static_cast<int>(LogLevel::warn);
  if (std::string_view(text) == "off") return kOff;
  for (int level = 0; level < kOff; ++level)
    if (kLevels[level] == text) return level;
  return std::nullopt;
}

int level_for_stderr() { return level_of_environment().value_or(static_cast<int>(LogLevel::warn)); }

/// The text as one line. It may contain texts of other processes, which can be long.
std::string line_of(std::string_view text) {
  constexpr size_t kMostBytes = 4096;
  if (text.size() <= kMostBytes) return escaped(text);
  return fmt::format("{}… ({} bytes)", escaped(text.substr(0, kMostBytes)), text.size());
}

/// The local time of day: 12:00:01.123.
std::string time_of_day() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{:02}:{:02}:{:02}.{:03}", parts.tm_hour, parts.tm_min, parts.tm_sec, milliseconds);
}

struct Log {
  std::atomic<int> least_level = level_for_stderr();
  std::atomic<const LogOfProgram*> program = nullptr;
  Mutex mutex;  ///< held during a call of the receiver
  std::string task ABSL_GUARDED_BY(mutex) = "gradrail";
  LogReceiver receiver ABSL_GUARDED_BY(mutex);
};

/// Lives as long as the process: destructors of static objects may log.
Log& state() {
  static Log* const log = new Log;
  return *log;
}

}  // namespace

bool is_logged(LogLevel level) {
  const Log& log = state();
  if (const LogOfProgram* const program = log.program.load(); program != nullptr) return program->is_logged(level);
  return static_cast<int>(level) >= log.least_level.load(std::memory_order_relaxed);
}

void write_log(LogLevel level, std::string_view text) {
  if (!is_logged(level)) return;
  Log& log = state();
  if (const LogOfProgram* const program = log.program.load(); program != nullptr) return program->write(level, text);
  const std::string line = line_of(text);
  const MutexLock lock(log.mutex);
  if (log.receiver) return log.receiver(static_cast<int>(level), line);
  constexpr std::string_view kLetters = "DIWE";
  print_text(stderr, "{} {} {} {}\n", log.task, kLetters[static_cast<size_t>(level)], time_of_day(), line);
}

void start_log(const std::string& task_name) {
  Log& log = state();
  log.least_level = level_for_stderr();
  const MutexLock lock(log.mutex);
  log.task = task_name;
}

void send_log_to(LogReceiver receiver, int least_level) {
  Log& log = state();
  log.least_level = receiver ? std::clamp(least_level, 0, kOff - 1) : level_for_stderr();
  const MutexLock lock(log.mutex);
  log.receiver = std::move(receiver);
}

const LogOfProgram& own_log() {
  static constexpr LogOfProgram own = {.is_logged = gradrail::is_logged, .write = write_log};
  return own;
}

void send_log_to(const LogOfProgram& program) { state().program = &program; }

absl::Status check_log_level() {
  if (level_of_environment().has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "GRADRAIL_LOG={}: no such log level; there are debug, info, warn, error and off", std::getenv("GRADRAIL_LOG")));
}

}  // namespace gradrail
