#include "base/log.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/status.h"
#include "fmt/format.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/sink.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace gradrail {
namespace {

/// The level of GRADRAIL_LOG; nullopt for a value that is not a level.
std::optional<spdlog::level::level_enum> level_of_environment() {
  const char* const text = std::getenv("GRADRAIL_LOG");
  // A shell makes an empty value of an unset variable.
  if (text == nullptr || *text == '\0') return spdlog::level::warn;
  const spdlog::level::level_enum level = spdlog::level::from_str(text);
  // spdlog reads an unknown name as "off".
  if (level == spdlog::level::off && std::string_view(text) != "off") return std::nullopt;
  return level;
}

/// The text of a record as one line. It may contain texts of other processes, which can be long.
std::string line_of(const spdlog::details::log_msg& record) {
  constexpr size_t kMostBytes = 4096;
  const std::string_view text(record.payload.data(), record.payload.size());
  if (text.size() <= kMostBytes) return escaped(text);
  return fmt::format("{}… ({} bytes)", escaped(text.substr(0, kMostBytes)), text.size());
}

class OneLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& record, const std::tm& /*time*/, spdlog::memory_buf_t& out) override {
    const std::string text = line_of(record);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<OneLine>(); }
};

class ReceiverSink final : public spdlog::sinks::sink {
 public:
  /// The lock is also held during a call of the receiver.
  void send_to(LogReceiver receiver) {
    const MutexLock lock(mutex_);
    receiver_ = std::move(receiver);
  }

  void log(const spdlog::details::log_msg& record) override {
    const std::string text = line_of(record);
    const int level = std::clamp<int>(record.level, spdlog::level::debug, spdlog::level::err);
    const MutexLock lock(mutex_);
    if (!receiver_) return print_text(stderr, "gradrail: {}\n", text);
    receiver_(level - spdlog::level::debug, text);
  }
  void flush() override {}
  // The receiver gets the text alone.
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

 private:
  Mutex mutex_;
  LogReceiver receiver_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void send_log_to(LogReceiver receiver, int least_level) {
  static ReceiverSink* const sink = [] {
    auto made = std::make_shared<ReceiverSink>();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("gradrail", made));
    return made.get();  // the logger keeps it
  }();
  const auto to_stderr = level_of_environment().value_or(spdlog::level::warn);
  const auto chosen = static_cast<spdlog::level::level_enum>(std::clamp(least_level, 0, 3) + spdlog::level::debug);
  spdlog::default_logger_raw()->set_level(receiver ? chosen : to_stderr);
  sink->send_to(std::move(receiver));
}

void start_log(const std::string& task_name) {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    // stderr: stdout has the output of the command.
    auto made = std::make_shared<spdlog::logger>("gradrail", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(level_of_environment().value_or(spdlog::level::warn));
    made->flush_on(spdlog::level::warn);
    spdlog::set_default_logger(made);
    return made;
  }();
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<OneLine>('*').set_pattern(task_name + " %L %H:%M:%S.%e %*");
  // The lock of the sink is held: a thread may log at the same time, and would lose a logger that is replaced.
  logger->set_formatter(std::move(formatter));
}

absl::Status check_log_level() {
  if (level_of_environment().has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "GRADRAIL_LOG={}: no such log level; there are debug, info, warn, error and off", std::getenv("GRADRAIL_LOG")));
}

}  // namespace gradrail
