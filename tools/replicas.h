#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ps/cluster_spec.h"
#include "tools/train_options.h"

namespace gradrail::tools {

// --replicas 1: of N ps tasks the first N/2 serve, and task i + N/2 is the standby of task i.

/// INVALID_ARGUMENT: another number than 0 and 1, or no two halves.
absl::Status check_replicas(const TrainOptions& options);

/// Address of the ps task that is this one's standby, or that this one begins as the standby of; "": none.
std::string partner(const TrainOptions& options);
bool begins_as_standby(const TrainOptions& options);

/// What a worker joins, and where it goes when one of those is lost.
ps::ClusterSpec without_standbys(const TrainOptions& options);
std::vector<std::string> standbys(const TrainOptions& options);

}  // namespace gradrail::tools
