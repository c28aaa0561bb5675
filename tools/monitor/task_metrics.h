#pragma once

#include <string>

#include "base/clock.h"
#include "ps/protocol/control.pb.h"
#include "tools/monitor/metric.h"
#include "worker/client/client.h"

namespace gradrail::tools {

/// The build, for every task.
Metric build_info(const std::string& task);

/// The metrics of a worker; `under_way`: duration of its current exchange.
Metrics worker_metrics(const worker::ClientStats& stats, Duration under_way);

/// The metrics of a ps task.
Metrics ps_metrics(const ps::proto::StatsReply& stats);

}  // namespace gradrail::tools
