#include "launch/start/launched_task.h"

#include <unistd.h>

#include "base/exit_codes.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/rendezvous/rendezvous.h"
#include "launch/start/start.h"
#include "launch/task/backup_ps.h"
#include "launch/task/console.h"
#include "ps/protocol/security.h"

namespace gradrail::launch {
namespace {

absl::Status check_counts(const TaskOptions& options, const Launch& launch, uint32_t ps_count) {
  if (launch.ps_count && options.ps_given && options.ps != *launch.ps_count)
    return absl::InvalidArgumentError(
        fmt::format("--ps {}: {} has {} (DMLC_NUM_SERVER): omit the flag, or use --local for a separate cluster",
                    options.ps, launch.job, *launch.ps_count));
  // Before the subtraction below: the difference of unsigned numbers must not wrap around.
  if (ps_count >= launch.size)
    return absl::InvalidArgumentError(fmt::format(
        "--ps {}: {} has started {} tasks, and one of them has to be a worker", ps_count, launch.job, launch.size));
  const uint32_t workers = launch.size - ps_count;
  if (workers > ps::kMaxWorkers)
    return absl::InvalidArgumentError(
        fmt::format("{} workers by {}: the limit is {}", workers, launch.job, ps::kMaxWorkers));
  if (options.workers_given && options.workers != workers)
    return absl::InvalidArgumentError(
        fmt::format("--workers {}: {} has started {} tasks, of which --ps {} leaves {} workers: omit the flag, or use "
                    "--local for a separate cluster",
                    options.workers, launch.job, launch.size, ps_count, workers));
  return absl::OkStatus();
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// "worker/1 of 3, with 1 ps: rank 2 of 4 of Slurm job 17 step 0, node n2".
std::string explain(const TaskOptions& options) {
  const Launch& launch = *options.launch;
  const bool is_ps = options.task.job == "ps";
  const size_t ps_count = options.cluster.ps.size(), workers = options.cluster.workers.size();
  const std::string others =
      is_ps ? fmt::format("{} worker{}", workers, workers == 1 ? "" : "s") : fmt::format("{} ps", ps_count);
  const std::string from = launch.role == Launch::Role::by_rank
                               ? fmt::format("rank {} of {} of {}", *launch.rank, launch.size, launch.job)
                               : launch.job;
  // Slurm names its nodes; other launchers give no name, so the host's own is used.
  return fmt::format("{}/{} of {}, with {}: {}, {} {}", options.task.job, options.task.index,
                     is_ps ? ps_count : workers, others, from, launch.node.empty() ? "host" : "node",
                     launch.node.empty() ? host_name() : launch.node);
}

void take_assignment(TaskOptions& options, const proto::RankAssignment& assignment) {
  options.task = {.job = assignment.job(), .index = assignment.index()};
  options.own_cpus = assignment.own_cpus();
  options.place_on_host = static_cast<uint16_t>(assignment.place_on_host());
  options.cluster.ps.clear();
  for (const std::string& host : assignment.ps_hosts())
    // Port 0: the rendezvous passes on the ports once all ps listen.
    options.cluster.ps.push_back(ps::to_string({.host = host, .port = 0}));
  options.cluster.workers = {assignment.worker_hosts().begin(), assignment.worker_hosts().end()};
}

absl::Status run_launched_ps(const TaskOptions& options, const TaskBodies& bodies, Rendezvous& others,
                             SignalThread& signals) {
  absl::Status published;
  const absl::Status ended = run_task(options, bodies, signals, [&](uint16_t port) {
    published = others.publish(port);
    if (!published.ok()) signals.request_stop();  // no worker can join any more
  });
  return published.ok() ? ended : published;
}

}  // namespace

absl::Status check_launch(TaskOptions& options) {
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
  // Only ps-lite's launchers state the number of ps; for ranks the flag decides how many of them are ps.
  const uint32_t ps_count = (*launch)->ps_count.value_or(options.ps);
  GRADRAIL_RETURN_IF_ERROR(check_counts(options, **launch, ps_count));
  // The flag replaces the address that the launcher's variables give.
  if (options.rendezvous.is_given()) (*launch)->rendezvous = options.rendezvous.first_task;
  if ((*launch)->rendezvous.empty()) {
    const std::string& why = (*launch)->why_unknown;
    return absl::InvalidArgumentError(
        fmt::format("{} does not name the host of its first task{}: name it with --rendezvous tcp://HOST:PORT",
                    (*launch)->job, why.empty() ? "" : fmt::format(" ({})", why)));
  }
  // Checked here, so that a wrong address fails before the wait of --join-timeout.
  const absl::StatusOr<ps::HostPort> meet = ps::parse_host_port((*launch)->rendezvous);
  if (!meet.ok())
    return absl::InvalidArgumentError(
        fmt::format("rendezvous address of {}: {}", (*launch)->job, message_of(meet.status())));
  options.local = false;
  options.ps = ps_count;
  options.cluster.ps.resize(ps_count);
  options.cluster.workers.resize((*launch)->size - ps_count);
  options.launch = *std::move(launch);
  return absl::OkStatus();
}

absl::Status run_launched(TaskOptions options, const TaskBodies& bodies, SignalThread& signals) {
  // Facts from there are not proven: any process that reaches this host can connect to the rendezvous.
  GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(options.security, options.launch->rendezvous));
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> others,
                            Rendezvous::join({.launch = *options.launch,
                                              .secret = options.security.secret,
                                              .ps_count = options.ps,
                                              .backup_ps = options.backup_ps != 0,
                                              .bind_host = options.bind.host,
                                              .timeout = std::chrono::seconds(options.join_timeout_seconds),
                                              .say = print_comment}));
  if (options.launch->role == Launch::Role::scheduler) {
    print_comment(fmt::format("scheduler of {}: {} ps and {} workers have joined", options.launch->job, options.ps,
                              options.launch->size - options.ps));
    // The scheduler of ps-lite has no port of its own, but passes on those of the ps.
    return others->publish(0);
  }
  take_assignment(options, others->assignment());
  print_comment(explain(options));
  const bool is_ps = options.task.job == "ps";
  // A worker needs the ports that the kernel has assigned to all ps tasks, and a primary that of its backup.
  if (!is_ps || has_backup(options)) {
    GRADRAIL_ASSIGN_OR_RETURN(options.cluster.ps, others->ps_addresses());
  }
  return is_ps ? run_launched_ps(options, bodies, *others, signals) : run_task(options, bodies, signals);
}

}  // namespace gradrail::launch
