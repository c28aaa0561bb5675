#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/monitor/metric.h"

namespace gradrail::tools {

/// Serves http://host:port/metrics for Prometheus.
/// Threads  Has its own. `collect` is called in them, at each scrape, until the destructor returns.
class MetricsServer {
 public:
  using Collect = std::function<Metrics()>;

  /// `port` 0: any.
  /// Errors  FAILED_PRECONDITION: built without prometheus-cpp, or the address cannot be used.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> start(const std::string& host, uint16_t port, Collect collect);
  virtual ~MetricsServer() = default;

  const std::string& url() const { return url_; }

 protected:
  explicit MetricsServer(std::string url) : url_(std::move(url)) {}

 private:
  const std::string url_;
};

}  // namespace gradrail::tools
