#include "launch/start/etcd_task.h"

#include <sys/utsname.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/etcd/ps_lookup.h"
#include "launch/etcd/registration.h"
#include "launch/start/start.h"
#include "launch/task/console.h"

namespace gradrail::launch {
namespace {

/// The host of --bind, unless that is every address of this host: others need one of them.
std::string bind_host(const TaskOptions& options) {
  // "": etcd's answer then shows which address of this host others reach.
  return is_any_host(options.bind.host) ? "" : options.bind.host;
}

}  // namespace

absl::Status check_rendezvous(TaskOptions& options) {
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
  const uint32_t limit = is_ps ? options.ps : ps::kMaxWorkers;
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

absl::Status run_with_etcd(TaskOptions options, const TaskBodies& bodies, SignalThread& signals) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<PsLookup> lookup, PsLookup::open(options.rendezvous, options.ps));
  options.ps_address = [&](uint32_t index) { return lookup->address(index); };
  print_comment(fmt::format("{}/{} of {} ps and {} workers: by {}", options.task.job, options.task.index, options.ps,
                            options.workers, options.rendezvous.text));
  if (options.task.job == "worker") {
    // A worker beyond the size of the run joins later and has no entry in the list.
    utsname host{};
    uname(&host);
    if (options.task.index < options.workers)
      options.cluster.workers[options.task.index] = fmt::format("{} pid {}", host.nodename, getpid());
    return run_task(options, bodies, signals);
  }
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<Registration> registration,
                            Registration::take({.where = options.rendezvous,
                                                .ps_index = options.task.index,
                                                .host = bind_host(options),
                                                .timeout = std::chrono::seconds(options.join_timeout_seconds),
                                                .say = print_comment}));
  // Port 0: the kernel selects a free one, which is known once the ps listens.
  options.cluster.ps[options.task.index] = ps::to_string({.host = registration->host(), .port = 0});
  return run_task(options, bodies, signals, [&](uint16_t port) { registration->publish(port); });
}

}  // namespace gradrail::launch
