#include "launch/start/resolve_cluster.h"

#include <cstdlib>

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::launch {
namespace {

/// Empty without the variable.
absl::StatusOr<TfConfig> read_tf_config() {
  const char* const text = std::getenv("TF_CONFIG");
  absl::StatusOr<TfConfig> config = text == nullptr ? TfConfig() : parse_tf_config(text);
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
absl::Status check_size_of_tf_config(const TaskOptions& options, const ClusterSpec& cluster) {
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

/// A task that finds the others by etcd.
absl::Status resolve_by_etcd(TaskOptions& options) {
  if (options.is_local_asked || !options.cluster_file.empty() || !options.ps_hosts.empty() ||
      !options.worker_hosts.empty())
    return usage_error(absl::InvalidArgumentError(
        "--rendezvous finds the other tasks: leave out --cluster, --ps_hosts, --worker_hosts and --local"));
  const bool is_ps = options.job_name == "ps";
  if (!is_ps && options.job_name != "worker")
    return absl::InvalidArgumentError(
        fmt::format("--rendezvous with --job_name '{}': each task is a ps or a worker", options.job_name));
  if (!options.ps_given || !options.workers_given || options.ps == 0)
    return absl::InvalidArgumentError(
        "--rendezvous: give each task --ps and --workers, the numbers of tasks with which the run begins; a run has at "
        "least one ps");
  const uint32_t limit = is_ps ? options.ps : kMaxWorkers;
  if (options.task_index < 0 || options.task_index >= limit)
    return absl::InvalidArgumentError(
        fmt::format("--task_index {}: --rendezvous needs the index of this task in its job, 0 to {}",
                    options.task_index, limit - 1));
  options.local = false;
  options.task = {.job = options.job_name, .index = static_cast<uint32_t>(options.task_index)};
  // Only the numbers count here: `ps_address` finds an address when a connection needs it.
  options.cluster.ps.assign(options.ps, "");
  options.cluster.workers.assign(options.workers, "has not joined yet");
  // Unknown tasks may share the host: the plan binds only where a flag states which CPUs are free for this task.
  options.own_cpus = true;
  if (options.cores.has_value()) return absl::OkStatus();
  options.why_unbound = "not bound (other tasks of this host are not known: give each task its --cores)";
  // A wait that spins would take the time of these tasks.
  if (options.wait == "auto") options.wait = "block";
  return absl::OkStatus();
}

absl::Status check_counts(const TaskOptions& options, const Launch& launch) {
  // Before the subtraction below: the difference of unsigned numbers must not wrap around.
  if (options.ps >= launch.size)
    return absl::InvalidArgumentError(fmt::format(
        "--ps {}: {} has started {} tasks, and one of them has to be a worker", options.ps, launch.job, launch.size));
  const uint32_t workers = launch.size - options.ps;
  if (workers > kMaxWorkers)
    return absl::InvalidArgumentError(
        fmt::format("{} workers by {}: the limit is {}", workers, launch.job, kMaxWorkers));
  if (options.workers_given && options.workers != workers)
    return absl::InvalidArgumentError(
        fmt::format("--workers {}: {} has started {} tasks, of which --ps {} leaves {} workers: omit the flag, or use "
                    "--local for a separate cluster",
                    options.workers, launch.job, launch.size, options.ps, workers));
  return absl::OkStatus();
}

/// Whether srun, mpirun or torchrun has started us as one of several tasks. If so, `options` are those
/// of a cluster that is known by its size.
absl::Status resolve_by_launcher(TaskOptions& options) {
  if (options.is_local_asked || options.ps == 0) {
    if (!options.rendezvous.is_given()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("--rendezvous {}: --local and --ps 0 have no other tasks", options.rendezvous.text));
  }
  absl::StatusOr<std::optional<Launch>> launch = read_launcher();
  // Variables of an earlier launcher can be left over in a shell: the message names the way out.
  if (!launch.ok())
    return absl::InvalidArgumentError(fmt::format("{}; --local ignores such variables", message_of(launch.status())));
  if (!launch->has_value()) {
    if (!options.rendezvous.is_given()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("--rendezvous {}: neither srun, mpirun nor torchrun has started this task as one of several",
                    options.rendezvous.text));
  }
  GRADRAIL_RETURN_IF_ERROR(check_counts(options, **launch));
  // The flag replaces the address that the launcher's variables give.
  if (options.rendezvous.is_given()) (*launch)->rendezvous = options.rendezvous.first_task;
  if ((*launch)->rendezvous.empty()) {
    const std::string& why = (*launch)->why_unknown;
    return absl::InvalidArgumentError(
        fmt::format("{} does not name the host of its first task{}: name it with --rendezvous tcp://HOST:PORT",
                    (*launch)->job, why.empty() ? "" : fmt::format(" ({})", why)));
  }
  // Checked here, so that a wrong address fails before the wait of --join-timeout.
  const absl::StatusOr<HostPort> meet = parse_host_port((*launch)->rendezvous);
  if (!meet.ok())
    return absl::InvalidArgumentError(
        fmt::format("rendezvous address of {}: {}", (*launch)->job, message_of(meet.status())));
  options.local = false;
  options.cluster.ps.resize(options.ps);
  options.cluster.workers.resize((*launch)->size - options.ps);
  options.launch = *std::move(launch);
  return absl::OkStatus();
}

}  // namespace

absl::Status resolve_cluster(TaskOptions& options) {
  if (options.rendezvous.is_etcd()) return resolve_by_etcd(options);
  const bool hosts = !options.ps_hosts.empty() || !options.worker_hosts.empty();
  if (options.is_local_asked && (!options.cluster_file.empty() || hosts))
    return usage_error(
        absl::InvalidArgumentError("--local starts a separate cluster: omit --cluster, --ps_hosts and --worker_hosts"));
  // TF_CONFIG has the lowest rank: flags replace it.
  GRADRAIL_ASSIGN_OR_RETURN(TfConfig config, options.is_local_asked || hosts || !options.cluster_file.empty()
                                                 ? absl::StatusOr<TfConfig>(TfConfig())
                                                 : read_tf_config());
  const bool evaluates = options.job_name.empty() ? config.task.has_value() && config.task->job == kEvaluator
                                                  : options.job_name == kEvaluator;
  if (evaluates) {
    options.local = false;
    options.task = {.job = kEvaluator};
    return absl::OkStatus();
  }
  // No description of a cluster: the demo, or a task of a launcher, which resolve_by_launcher() decides.
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
    GRADRAIL_RETURN_IF_ERROR(resolve_by_launcher(options));
    if (options.local && !options.is_local_asked && std::getenv("TF_CONFIG") != nullptr)
      print_text(stderr, "gradrail: TF_CONFIG names no cluster: this run uses this host alone\n");
    return absl::OkStatus();
  }
  if (!options.cluster_file.empty() && hosts)
    return usage_error(absl::InvalidArgumentError("give either --cluster or --ps_hosts and --worker_hosts"));
  if (!options.cluster_file.empty() || hosts) GRADRAIL_RETURN_IF_ERROR(check_size(options));
  absl::StatusOr<ClusterSpec> cluster = absl::UnknownError("");
  if (!options.cluster_file.empty()) {
    cluster = read_cluster_file(options.cluster_file);
  } else if (hosts) {
    cluster = cluster_from_hosts(options.ps_hosts, options.worker_hosts);
  } else {
    GRADRAIL_RETURN_IF_ERROR(check_size_of_tf_config(options, *config.cluster));
    cluster = *std::move(config.cluster);
  }
  if (!cluster.ok()) return cluster.status();
  options.cluster = *std::move(cluster);
  if (!options.job_name.empty()) {
    // TensorFlow's clusters have one chief, so it needs no index.
    if (options.task_index == -1 && !has_one_task(options.job_name))
      return usage_error(absl::InvalidArgumentError(
          fmt::format("--task_index is missing (which task of job '{}' is this?)", options.job_name)));
    // The flag replaces the task of TF_CONFIG.
    GRADRAIL_ASSIGN_OR_RETURN(config.task, resolve_task(options.cluster, options.job_name,
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
