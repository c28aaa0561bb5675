#include "base/log.h"

#include <cstdlib>
#include <optional>

#include "fmt/format.h"
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

}  // namespace

void start_log(const std::string& task_name) {
  // stderr: stdout has the output of the command.
  auto logger = std::make_shared<spdlog::logger>("gradrail", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(task_name + " %L %H:%M:%S.%e %v");
  logger->set_level(level_of_environment().value_or(spdlog::level::warn));
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

absl::Status check_log_level() {
  if (level_of_environment().has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "GRADRAIL_LOG={}: no such log level; there are debug, info, warn, error and off", std::getenv("GRADRAIL_LOG")));
}

}  // namespace gradrail
