#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace gradrail::tools {

/// The flags of `gradrail train` about watching a run.
/// Units  ports are TCP ports; flight_records counts marks.
struct MonitoringFlags {
  std::optional<uint16_t> metrics_port;  ///< absent: nothing is served; 0: any
  std::string metrics_bind = "127.0.0.1";
  std::string logs_path;  ///< "": no summaries
  uint32_t flight_records = 4096;
  // The timeline is one file of the chief for all tasks; the others only upload their marks.
  std::string timeline;  ///< file; "": none

  /// Room of a task's flight recorder.
  size_t marks() const;
};

/// The flags of the endpoint for Prometheus, in the group "Monitoring".
void add_metrics_flags(CLI::App& command, MonitoringFlags& flags);
void add_monitoring_flags(CLI::App& command, MonitoringFlags& flags);

/// `alone`: without a parameter server. INVALID_ARGUMENT names the flag.
absl::Status check_monitoring(const MonitoringFlags& flags, bool alone);

/// Checks that the file of --timeline_filename can be written. FAILED_PRECONDITION, RESOURCE_EXHAUSTED.
absl::Status check_timeline(const MonitoringFlags& flags);

/// Checks that the first `tasks` ports from --metrics_port on are free. FAILED_PRECONDITION names the first one that is
/// not.
absl::Status check_metrics_ports(const MonitoringFlags& flags, uint32_t tasks);

/// Makes the folder of --logs_path, which a task needs after minutes or only after a failure.
/// A full disk is no error here: the log names each file that a task cannot write.
/// Errors  FAILED_PRECONDITION: the folder, and why it cannot be made or written to.
absl::Status make_logs_folder(const MonitoringFlags& flags);

}  // namespace gradrail::tools
