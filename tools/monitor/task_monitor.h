#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/rate_limited_log.h"
#include "gradrail/client.h"
#include "ps/server.h"
#include "tools/monitor/flags.h"
#include "tools/monitor/flight_dump.h"
#include "tools/monitor/metrics_server.h"
#include "tools/monitor/summaries.h"
#include "tools/monitor/timeline.h"

namespace gradrail::tools {

/// Name, index and output of a watched task.
struct MonitoredTask {
  std::string name;            ///< "worker/1"
  uint16_t place_on_host = 0;  ///< index among the tasks that share the flags and the host; ports are counted up by it
  std::function<void(const std::string&)> print;
};

/// Serves metrics for Prometheus, and prints the address. Null without --metrics_port.
/// Errors  Those of MetricsServer::start. INVALID_ARGUMENT: the port of this task is above 65535.
absl::StatusOr<std::unique_ptr<MetricsServer>> serve_metrics(const MonitoringFlags& flags, const MonitoredTask& task,
                                                             MetricsServer::Collect collect);

/// The parts that show a running ps task to others.
/// Threads  Owner thread; what it serves has its own.
class PsMonitor {
 public:
  /// `server` outlives it. Errors  Those of MetricsServer::start.
  static absl::StatusOr<std::unique_ptr<PsMonitor>> start(const MonitoringFlags& flags, const MonitoredTask& task,
                                                          ps::Server& server);

 private:
  RateLimitedLog rate_limited_log_;  ///< limited because any process can request metrics
  std::unique_ptr<MetricsServer> metrics_;
};

/// The summaries of `gradrail train --logs_path`; null without, and on a full disk, of which the log has a warning.
absl::StatusOr<std::unique_ptr<Summaries>> open_summaries(const MonitoringFlags& flags, uint32_t worker,
                                                          uint32_t every);

/// The task's dumps, which the log names. Outlives what it is given to.
class FlightLog {
 public:
  FlightLog(const MonitoringFlags& flags, const std::string& task) : dump_(flags.logs_path, task) {}

  /// Nothing is written where there is nothing.
  void write(const std::vector<Mark>& marks, const std::string& why);
  /// Answers a request, which any process that reaches a ps may send: limited in number.
  void answer(const std::vector<Mark>& marks);

 private:
  FlightDump dump_;
  uint32_t answers_ = 0;
};

/// Opens the timeline of `gradrail train --timeline_filename`, which stays open until the end; null without.
absl::StatusOr<std::unique_ptr<Timeline>> open_timeline(const MonitoringFlags& flags, uint32_t worker);
/// Finishes the timeline. A picture that is not available is no reason for a run to fail: the log has the reason.
void finish_timeline(Timeline* timeline, Client& client);

/// Monitor of a worker. It exists before the worker has joined, so that a port in use is detected before.
class WorkerMonitor {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerMonitor>> start(const MonitoringFlags& flags, MonitoredTask task);

  /// Scope in which other threads read the client.
  class Watch {
   public:
    Watch(WorkerMonitor& monitor, Client& client);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    WorkerMonitor& monitor_;
  };

 private:
  explicit WorkerMonitor(MonitoredTask task) : task_(std::move(task)) {}
  Metrics collect();

  const MonitoredTask task_;
  Mutex mutex_;
  Client* client_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<MetricsServer> metrics_;  ///< last: its threads use the rest
};

}  // namespace gradrail::tools
