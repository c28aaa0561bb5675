#include "launch/start/resolve_cluster.h"

#include <cstdlib>

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/start/etcd_task.h"
#include "launch/start/launched_task.h"

namespace gradrail::launch {
namespace {

/// Empty without the variable.
absl::StatusOr<ps::TfConfig> read_tf_config() {
  const char* const text = std::getenv("TF_CONFIG");
  absl::StatusOr<ps::TfConfig> config = text == nullptr ? ps::TfConfig() : ps::parse_tf_config(text);
  if (config.ok()) return config;
  return absl::InvalidArgumentError(fmt::format("{}; --local ignores TF_CONFIG", message_of(config.status())));
}

/// The size of a local cluster says nothing where the tasks have addresses.
absl::Status check_size(const TaskOptions& options) {
  if (options.ps == 0 || !(options.ps_given || options.workers_given)) return absl::OkStatus();
  const std::string given =
      options.cluster_file.empty() ? "--ps_hosts and --worker_hosts" : "--cluster " + options.cluster_file;
  return usage_error(absl::InvalidArgumentError(fmt::format(
      "{} has no effect with {}, which states all tasks: leave out one of the two",
      options.ps_given ? fmt::format("--ps {}", options.ps) : fmt::format("--workers {}", options.workers), given)));
}

/// TF_CONFIG may come from a platform, for a command that also runs as a local cluster: the same size is no error.
absl::Status check_size_of_tf_config(const TaskOptions& options, const ps::ClusterSpec& cluster) {
  if (options.ps == 0) return absl::OkStatus();  // check_alone()
  const size_t ps = cluster.ps.size(), workers = cluster.workers.size();
  const bool is_other = (options.ps_given && options.ps != ps) ||
                        (options.workers_given && !cluster.sparse && options.workers != workers);
  if (!is_other) return absl::OkStatus();
  return usage_error(absl::InvalidArgumentError(
      fmt::format("{}: TF_CONFIG has {} ps and {} workers: leave out the flag; --local ignores TF_CONFIG",
                  options.ps_given && options.ps != ps ? fmt::format("--ps {}", options.ps)
                                                       : fmt::format("--workers {}", options.workers),
                  ps, workers)));
}

}  // namespace

absl::Status resolve_cluster(TaskOptions& options) {
  if (options.rendezvous.is_etcd()) return check_rendezvous(options);
  const bool hosts = !options.ps_hosts.empty() || !options.worker_hosts.empty();
  if (options.is_local_asked && (!options.cluster_file.empty() || hosts))
    return usage_error(
        absl::InvalidArgumentError("--local starts a separate cluster: omit --cluster, --ps_hosts and --worker_hosts"));
  // TF_CONFIG has the lowest rank: flags replace it.
  GRADRAIL_ASSIGN_OR_RETURN(ps::TfConfig config, options.is_local_asked || hosts || !options.cluster_file.empty()
                                                     ? absl::StatusOr<ps::TfConfig>(ps::TfConfig())
                                                     : read_tf_config());
  const bool evaluates = options.job_name.empty() ? config.task.has_value() && config.task->job == kEvaluator
                                                  : options.job_name == kEvaluator;
  if (evaluates) {
    options.local = false;
    options.task = {.job = kEvaluator};
    return absl::OkStatus();
  }
  // No description of a cluster: the demo, or a task of a launcher, which check_launch() decides.
  options.local = options.cluster_file.empty() && !hosts && !config.cluster.has_value();
  if (!options.local && options.rendezvous.is_given()) {
    return usage_error(absl::InvalidArgumentError(
        fmt::format("--rendezvous {}: the cluster has the addresses of all tasks; leave out one of the two",
                    options.rendezvous.text)));
  }
  if (options.local) {
    if (!options.job_name.empty() || options.task_index >= 0) {
      return absl::InvalidArgumentError(
          "--job_name and --task_index need a cluster: --cluster FILE, --ps_hosts and --worker_hosts, or TF_CONFIG");
    }
    GRADRAIL_RETURN_IF_ERROR(check_launch(options));
    if (options.local && !options.is_local_asked && std::getenv("TF_CONFIG") != nullptr)
      print_text(stderr, "gradrail: TF_CONFIG names no cluster: this run uses this host alone\n");
    return absl::OkStatus();
  }
  if (!options.cluster_file.empty() && hosts)
    return usage_error(absl::InvalidArgumentError("give either --cluster or --ps_hosts and --worker_hosts"));
  if (!options.cluster_file.empty() || hosts) GRADRAIL_RETURN_IF_ERROR(check_size(options));
  absl::StatusOr<ps::ClusterSpec> cluster = absl::UnknownError("");
  if (!options.cluster_file.empty()) {
    cluster = ps::read_cluster_file(options.cluster_file);
  } else if (hosts) {
    cluster = ps::cluster_from_hosts(options.ps_hosts, options.worker_hosts);
  } else {
    GRADRAIL_RETURN_IF_ERROR(check_size_of_tf_config(options, *config.cluster));
    cluster = *std::move(config.cluster);
  }
  if (!cluster.ok()) return cluster.status();
  options.cluster = *std::move(cluster);
  if (!options.job_name.empty()) {
    // TensorFlow's clusters have one chief, so it needs no index.
    if (options.task_index == -1 && !ps::has_one_task(options.job_name))
      return usage_error(absl::InvalidArgumentError(
          fmt::format("--task_index is missing (which task of job '{}' is this?)", options.job_name)));
    // The flag replaces the task of TF_CONFIG.
    GRADRAIL_ASSIGN_OR_RETURN(config.task, ps::resolve_task(options.cluster, options.job_name,
                                                            options.task_index == -1 ? 0 : options.task_index));
  }
  if (!config.task.has_value()) {
    if (options.cluster_file.empty() && !hosts)
      return absl::InvalidArgumentError(
          "TF_CONFIG has no \"task\": add the job and the index of this task, as in \"task\": {\"type\": \"worker\", "
          "\"index\": 0}");
    return usage_error(
        absl::InvalidArgumentError("--job_name and --task_index are missing (which task of the cluster is this?)"));
  }
  options.task = *std::move(config.task);
  return absl::OkStatus();
}

}  // namespace gradrail::launch
