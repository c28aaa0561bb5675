#include "base/log.h"

#include <cstdlib>

#include "spdlog/sinks/stdout_sinks.h"

namespace gradrail {

void start_log(const std::string& task_name) {
  // stderr: stdout has the output of the command.
  auto logger = std::make_shared<spdlog::logger>("gradrail", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(task_name + " %L %H:%M:%S.%e %v");
  const char* level = std::getenv("GRADRAIL_LOG");
  // spdlog reads an unknown level name as "off".
  logger->set_level(level == nullptr ? spdlog::level::warn : spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace gradrail
