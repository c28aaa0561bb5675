#pragma once

#include <string>

#include "base/clock.h"
#include "ps/control.pb.h"
#include "tools/monitoring/metric.h"
#include "worker/client.h"

namespace gradrail::tools {

/// Of every task: which build it is.
Metric build_info(const std::string& task);

/// What a worker has to show; `under_way`: of its exchange, if there is one.
Metrics worker_metrics(const worker::ClientStats& stats, Duration under_way);

/// What a ps task has to show.
Metrics ps_metrics(const ps::proto::StatsReply& stats);

}  // namespace gradrail::tools
