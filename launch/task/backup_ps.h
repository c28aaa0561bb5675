#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradrail/cluster.h"
#include "launch/task/task_options.h"

namespace gradrail::launch {

// --backup-ps 1: of N ps tasks the first N/2 serve, and task i + N/2 is the backup of task i.

/// INVALID_ARGUMENT: the tasks have no two halves. OK also while the number of ps tasks is not known.
absl::Status check_backup_ps(const TaskOptions& options);

/// The ps task that is this one's backup, or the primary of which this one begins as the backup; "": none. Its address,
/// or its name if only find_replication_peer() has the address.
std::string replication_peer(const TaskOptions& options);
/// Finds its address in etcd; empty: replication_peer() is the address.
std::function<absl::StatusOr<std::string>()> find_replication_peer(const TaskOptions& options);
bool begins_as_backup(const TaskOptions& options);
/// A ps task that begins as the primary of another one.
bool has_backup(const TaskOptions& options);

/// The ps tasks that a worker joins, and the backup of each.
ClusterSpec without_backups(const TaskOptions& options);
std::vector<std::string> backups(const TaskOptions& options);

}  // namespace gradrail::launch
