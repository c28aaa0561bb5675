#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tools/monitor/flags.h"
#include "tools/security_flags.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

struct AggregatorFlags {
  std::string bind;         ///< "": the address of the task in `cluster`
  std::string cluster;      ///< file with the job "aggregator"
  int64_t task_index = -1;  ///< in this job; -1: not given
  std::string transport = "auto";
  std::string ofi_provider;
  uint32_t path_timeout_s = 10;
  uint32_t slot_mib = 32;
  std::string plugin_dir;
  SecurityFlags security;
  MonitoringFlags monitoring;  ///< the endpoint for Prometheus alone
};

void add_aggregator_flags(CLI::App& command, AggregatorFlags& flags);

/// Serves runs until a signal stops the process.
absl::Status run_aggregator(const AggregatorFlags& flags);

}  // namespace gradrail::tools
