#include "launch/task/backup_ps.h"

#include "fmt/format.h"

namespace gradrail::launch {
namespace {

/// How many ps tasks serve.
size_t half(const TaskOptions& options) {
  return options.backup_ps == 0 ? options.cluster.ps.size() : options.cluster.ps.size() / 2;
}

uint32_t peer_index(const TaskOptions& options) {
  // Task i and task i + half are each other's peers, so one formula serves both.
  return static_cast<uint32_t>((options.task.index + half(options)) % options.cluster.ps.size());
}

}  // namespace

absl::Status check_backup_ps(const TaskOptions& options) {
  if (options.backup_ps == 0) return absl::OkStatus();
  // A local cluster has no list of addresses yet: its tasks are still to be started.
  const size_t tasks = options.cluster.ps.empty() ? options.ps : options.cluster.ps.size();
  if (tasks >= 2 && tasks % 2 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("--backup-ps 1: of the ps tasks the second half are backups of the first, so that there must be an "
                  "even number of them; there {} {}{}",
                  tasks == 1 ? "is" : "are", tasks, options.local ? " (--ps 2: one, and its backup)" : ""));
}

std::string replication_peer(const TaskOptions& options) {
  if (options.backup_ps == 0) return "";
  const uint32_t index = peer_index(options);
  return options.rendezvous.is_etcd() ? fmt::format("ps/{}", index) : options.cluster.ps[index];
}

std::function<absl::StatusOr<std::string>()> find_replication_peer(const TaskOptions& options) {
  if (options.backup_ps == 0 || !options.ps_address) return nullptr;
  return [find = options.ps_address, index = peer_index(options)] { return find(index); };
}

// Without --backup-ps half() is the number of all ps tasks: then no index reaches it.
bool begins_as_backup(const TaskOptions& options) { return options.task.index >= half(options); }

bool has_backup(const TaskOptions& options) { return options.backup_ps != 0 && !begins_as_backup(options); }

ClusterSpec without_backups(const TaskOptions& options) {
  ClusterSpec cluster = options.cluster;
  cluster.ps.resize(half(options));
  return cluster;
}

std::vector<std::string> backups(const TaskOptions& options) {
  return {options.cluster.ps.begin() + static_cast<ptrdiff_t>(half(options)), options.cluster.ps.end()};
}

}  // namespace gradrail::launch
