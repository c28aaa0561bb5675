// This file replaces metrics_server_prometheus.cc if prometheus-cpp was not found. The error is better than a flag that
// has no effect: a run without metrics looks healthy.
#include "tools/monitor/metrics_server.h"

namespace gradrail::tools {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string&, uint16_t, Collect) {
  return absl::FailedPreconditionError(
      "--metrics_port: this program was built without prometheus-cpp (install prometheus-cpp-dev and build again)");
}

}  // namespace gradrail::tools
