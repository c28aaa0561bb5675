#include "tools/monitoring/flags.h"

#include <arpa/inet.h>

#include "fmt/format.h"

namespace gradrail::tools {

void add_monitoring_flags(CLI::App& command, MonitoringFlags& flags) {
  command
      .add_option("--metrics_port,--metrics-port", flags.metrics_port,
                  "serve Prometheus here, 0: any port; in a local cluster each task takes the next one")
      ->take_last();
  command
      .add_option("--metrics_bind,--metrics-bind", flags.metrics_bind,
                  "address to serve it on; 0.0.0.0: all of this host's")
      ->capture_default_str()
      ->take_last();
  command
      .add_option("--logs_path,--logs-path", flags.logs_path,
                  "folder for TensorBoard summaries, each worker its own below, and for what a flight recorder leaves")
      ->take_last();
}

absl::Status check_monitoring(const MonitoringFlags& flags, bool alone) {
  if (alone && flags.metrics_port.has_value()) {
    return absl::InvalidArgumentError(
        "--metrics_port: with --ps 0 there is no exchange to measure; --logs_path has the run's summaries");
  }
  in6_addr address;
  const char* text = flags.metrics_bind.c_str();
  if (inet_pton(AF_INET, text, &address) != 1 && inet_pton(AF_INET6, text, &address) != 1) {
    return absl::InvalidArgumentError(
        fmt::format("--metrics_bind '{}': must be an address of this host, such as 127.0.0.1 or ::1", text));
  }
  return absl::OkStatus();
}

}  // namespace gradrail::tools
