// --parent: this ps is a node of a tree (docs/clusters.md#trees-of-servers).
#include <algorithm>

#include "base/exit_codes.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {
namespace {

/// Refuses a cluster that has no place for a node, and flags of state that only the root of a tree has.
absl::Status check_node(const TrainOptions& options) {
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("--parent {}: {}", options.parent_file, why));
  };
  if (options.start.local)
    return refuse("a node of a tree needs a cluster description: give --cluster, or --ps_hosts and --worker_hosts");
  if (options.start.cluster.ps.size() != 1)
    return refuse("a node is the only ps of its workers: give each ps a cluster of its own, or use --shards");
  if (options.start.backup_ps != 0)
    return refuse("a node has no backup; omit --backup-ps, and start a lost node again");
  const bool has_state = !options.checkpoint_dir.empty() || options.ps_device != "host";
  if (has_state) return refuse("the root has the parameters; give --checkpoint_dir and --ps_device to the root");
  return absl::OkStatus();
}

}  // namespace

absl::Status set_parent(TrainOptions& options) {
  const std::string& file = options.parent_file;
  // The command of a run may have the flags of all of its tasks.
  if (file.empty() || (!options.start.local && options.start.task.job != "ps")) return absl::OkStatus();
  GRADRAIL_RETURN_IF_ERROR(usage_error(check_node(options)));
  GRADRAIL_ASSIGN_OR_RETURN(options.parent, read_cluster_file(file));
  const std::vector<std::string>& nodes = options.parent.workers;
  const auto found = std::find(nodes.begin(), nodes.end(), options.start.cluster.ps[0]);
  if (found == nodes.end() || options.parent.sparse) {
    return absl::InvalidArgumentError(
        fmt::format("--parent {}: its workers must be given by address, and {}, the address of this ps, must be one of "
                    "them",
                    file, options.start.cluster.ps[0]));
  }
  options.parent_index = static_cast<uint32_t>(found - nodes.begin());
  return absl::OkStatus();
}

}  // namespace gradrail::tools
