#pragma once

#include <string>

#include "gradrail/client.h"
#include "gradrail/clock.h"
#include "tools/monitor/metric.h"

namespace gradrail::ps::proto {
class StatsReply;
}

namespace gradrail::tools {

/// The build, for every task.
Metric build_info(const std::string& task);

/// The metrics of a worker; `under_way`: duration of its current exchange.
/// Units  Seconds and bytes in the output, as Prometheus requires.
Metrics worker_metrics(const ClientStats& stats, Duration under_way);

/// The metrics of a ps task.
/// Threads  Any: the statistics are a copy.
Metrics ps_metrics(const ps::proto::StatsReply& stats);

}  // namespace gradrail::tools
