#pragma once

#include <string>

#include "base/clock.h"
#include "tools/monitor/metric.h"
#include "worker/client/client.h"

namespace gradrail::ps::proto {
class StatsReply;
}

namespace gradrail::tools {

/// The build, for every task.
Metric build_info(const std::string& task);

/// The metrics of a worker; `under_way`: duration of its current exchange.
/// Units  Seconds and bytes in the output, as Prometheus requires.
Metrics worker_metrics(const worker::ClientStats& stats, Duration under_way);

/// The metrics of a ps task.
/// Threads  Any: the statistics are a copy.
Metrics ps_metrics(const ps::proto::StatsReply& stats);

}  // namespace gradrail::tools
