#include "tools/monitor/task_monitor.h"

#include <limits>

#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "tools/monitor/task_metrics.h"

namespace gradrail::tools {
namespace {

/// Any process that can reach a ps can request dumps: it must not fill the disk.
constexpr uint32_t kMostAnswers = 100;  // some 30 MB of files

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> serve_metrics(const MonitoringFlags& flags, const MonitoredTask& task,
                                                             MetricsServer::Collect collect) {
  if (!flags.metrics_port.has_value()) return nullptr;
  // Tasks of one host share the flag: each adds its place to the port.
  // 0 stays 0: the kernel then assigns a free port to each task.
  const uint32_t port = *flags.metrics_port == 0 ? 0 : uint32_t{*flags.metrics_port} + task.place_on_host;
  if (port > std::numeric_limits<uint16_t>::max()) {
    return absl::InvalidArgumentError(fmt::format("--metrics_port {}: {} would be given port {}, and 65535 is the last",
                                                  *flags.metrics_port, task.name, port));
  }
  absl::StatusOr<std::unique_ptr<MetricsServer>> server =
      MetricsServer::start(flags.metrics_bind, static_cast<uint16_t>(port), std::move(collect));
  if (server.ok()) task.print(fmt::format("Metrics: {}", (*server)->url()));
  return server;
}

absl::StatusOr<std::unique_ptr<PsMonitor>> PsMonitor::start(const MonitoringFlags& flags, const MonitoredTask& task,
                                                            ps::Server& server) {
  auto monitor = std::make_unique<PsMonitor>();
  // `server` is captured by reference: the destructor of the metrics server waits for its threads.
  const auto collect = [&server, name = task.name, log = &monitor->rate_limited_log_] {
    Metrics metrics = {build_info(name)};
    const absl::StatusOr<ps::proto::StatsReply> stats = server.stats();
    // The build information alone still shows that the task runs.
    if (!stats.ok()) {
      log->write(fmt::format("metrics: {}", message_of(stats.status())));
      return metrics;
    }
    for (Metric& metric : ps_metrics(*stats)) metrics.push_back(std::move(metric));
    return metrics;
  };
  GRADRAIL_ASSIGN_OR_RETURN(monitor->metrics_, serve_metrics(flags, task, collect));
  return monitor;
}

absl::StatusOr<std::unique_ptr<Summaries>> open_summaries(const MonitoringFlags& flags, uint32_t worker,
                                                          uint32_t every) {
  if (flags.logs_path.empty()) return nullptr;
  // TensorBoard shows each folder as a separate run.
  absl::StatusOr<std::unique_ptr<Summaries>> opened =
      Summaries::create(fmt::format("{}/worker_{}", flags.logs_path, worker), every);
  if (!absl::IsResourceExhausted(opened.status())) return opened;
  log_warning("the run continues without summaries: {}", message_of(opened.status()));
  return nullptr;
}

void FlightLog::write(const std::vector<Mark>& marks, const std::string& why) {
  if (marks.empty()) return;
  const absl::StatusOr<std::string> path = dump_.write(marks, why);
  if (path.ok()) {
    log_warning("flight recorder: the last {} operations are in {}", marks.size(), *path);
  } else {
    log_warning("flight recorder: {}", message_of(path.status()));
  }
}

void FlightLog::answer(const std::vector<Mark>& marks) {
  if (++answers_ <= kMostAnswers) return write(marks, "on request");
  if (answers_ == kMostAnswers + 1)
    log_warning("flight recorder: written down {} times; from now on only if this task fails", kMostAnswers);
}

absl::StatusOr<std::unique_ptr<Timeline>> open_timeline(const MonitoringFlags& flags, uint32_t worker) {
  if (flags.timeline.empty()) return nullptr;
  // The chief is not known yet. Worker 0 is the first chief of each run.
  return Timeline::create(flags.timeline, worker == 0);
}

void finish_timeline(Timeline* timeline, Client& client) {
  if (timeline == nullptr) return;
  if (const absl::Status written = timeline->finish(client); !written.ok())
    log_warning("no timeline: {}", message_of(written));
}

absl::StatusOr<std::unique_ptr<WorkerMonitor>> WorkerMonitor::start(const MonitoringFlags& flags, MonitoredTask task) {
  // Two phases: the callback needs the address of the monitor, and the server calls it as soon as it listens.
  std::unique_ptr<WorkerMonitor> monitor(new WorkerMonitor(std::move(task)));
  GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<MetricsServer> metrics,
                            serve_metrics(flags, monitor->task_, [raw = monitor.get()] { return raw->collect(); }));
  monitor->metrics_ = std::move(metrics);
  return monitor;
}

Metrics WorkerMonitor::collect() {
  Metrics metrics = {build_info(task_.name)};
  const MutexLock lock(mutex_);
  // The endpoint answers before join() and after the run, but has no exchanges to report.
  if (client_ == nullptr) return metrics;
  for (Metric& metric : worker_metrics(client_->statistics().published(), client_->statistics().exchange_under_way()))
    metrics.push_back(std::move(metric));
  return metrics;
}

WorkerMonitor::Watch::Watch(WorkerMonitor& monitor, Client& client) : monitor_(monitor) {
  const MutexLock lock(monitor_.mutex_);
  monitor_.client_ = &client;
}

WorkerMonitor::Watch::~Watch() {
  // Waits for a scrape that reads the client.
  const MutexLock lock(monitor_.mutex_);
  monitor_.client_ = nullptr;
}

}  // namespace gradrail::tools
