#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/file_descriptor.h"
#include "base/resource_limits.h"
#include "fmt/format.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "prometheus/metric_family.h"
#include "tools/monitor/metrics_server.h"

namespace gradrail::tools {
namespace {

// The probes repeat, since the server can accept one just before the request to end.
constexpr auto kProbeInterval = std::chrono::milliseconds(10);
constexpr int kProbeCount = 200;  // number that takes as long as the library takes by itself

prometheus::ClientMetric to_prometheus(const Metric& metric, const Metric::Sample& sample) {
  prometheus::ClientMetric result;
  for (const auto& [name, value] : sample.labels) result.label.push_back({name, value});
  switch (metric.kind) {
    case Metric::Kind::counter:
      result.counter.value = sample.value;
      break;
    case Metric::Kind::gauge:
      result.gauge.value = sample.value;
      break;
    case Metric::Kind::histogram:
      result.histogram.sample_count = sample.count;
      result.histogram.sample_sum = sample.sum;
      for (const auto& [bound, count] : sample.buckets) result.histogram.bucket.push_back({count, bound});
      break;
  }
  return result;
}

prometheus::MetricType type_of(Metric::Kind kind) {
  if (kind == Metric::Kind::counter) return prometheus::MetricType::Counter;
  return kind == Metric::Kind::gauge ? prometheus::MetricType::Gauge : prometheus::MetricType::Histogram;
}

// The library calls this object at each scrape, in its own threads.
class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(MetricsServer::Collect collect) : collect_(std::move(collect)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    for (const Metric& metric : collect_()) {
      if (metric.samples.empty()) continue;  // a path that is not there yet
      prometheus::MetricFamily family{.name = metric.name, .help = metric.help, .type = type_of(metric.kind)};
      for (const Metric::Sample& sample : metric.samples) family.metric.push_back(to_prometheus(metric, sample));
      families.push_back(std::move(family));
    }
    return families;
  }

 private:
  const MetricsServer::Collect collect_;
};

std::string host_and_port(const std::string& host, int port) {
  // An IPv6 address needs brackets before a port (RFC 3986).
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

class PrometheusServer final : public MetricsServer {
 public:
  PrometheusServer(std::string url, std::string host, std::shared_ptr<Collector> collector,
                   std::unique_ptr<prometheus::Exposer> exposer)
      : MetricsServer(std::move(url)),
        host_(std::move(host)),
        collector_(std::move(collector)),
        exposer_(std::move(exposer)) {}
  ~PrometheusServer() override;

 private:
  const std::string host_;
  const std::shared_ptr<Collector> collector_;  // shared, as the library requires: it holds a weak reference
  std::unique_ptr<prometheus::Exposer> exposer_;
};

/// Makes one connection, which wakes the thread that waits for one. An IPv6 server ends somewhat later.
void send_probe(const std::string& host, int port) {
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {}};
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return;
  const FileDescriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The result does not matter: an attempt to connect already wakes the thread.
  [[maybe_unused]] const int result =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

PrometheusServer::~PrometheusServer() {
  // The request may have been for port 0.
  const int port = exposer_->GetListeningPorts().at(0);
  // The library looks only every two seconds whether it is to end; the end of a task should not wait for that.
  std::atomic<bool> ended = false;
  // The end takes two seconds without the thread.
  absl::StatusOr<std::thread> waker = start_thread("that ends the metrics", [&] {
    for (int i = 0; i < kProbeCount && !ended.load(); ++i) {
      std::this_thread::sleep_for(kProbeInterval);
      send_probe(host_, port);
    }
  });
  exposer_.reset();
  ended.store(true);
  if (waker.ok()) waker->join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string& host, uint16_t port,
                                                                    Collect collect) {
  const std::string address = host_and_port(host, port);
  // Exposer's constructor throws if it cannot listen.
  try {  // the library reports it by an exception only
    auto exposer = std::make_unique<prometheus::Exposer>(address);
    auto collector = std::make_shared<Collector>(std::move(collect));
    exposer->RegisterCollectable(collector);
    std::string url = fmt::format("http://{}/metrics", host_and_port(host, exposer->GetListeningPorts().at(0)));
    return std::make_unique<PrometheusServer>(std::move(url), host, std::move(collector), std::move(exposer));
  } catch (const std::exception&) {  // its text names no cause
    return absl::FailedPreconditionError(
        fmt::format("cannot serve metrics on {}: the port is in use, or the address is not one of this host (see "
                    "--metrics_port and --metrics_bind)",
                    address));
  }
}

}  // namespace gradrail::tools
