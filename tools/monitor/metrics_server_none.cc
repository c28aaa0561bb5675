#include "tools/monitor/metrics_server.h"

namespace gradrail::tools {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string&, uint16_t, Collect) {
  return absl::FailedPreconditionError(
      "--metrics_port: this program was built without prometheus-cpp (install prometheus-cpp-dev and build again)");
}

}  // namespace gradrail::tools
