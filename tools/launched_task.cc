#include "tools/launched_task.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/security.h"
#include "tools/launcher/rendezvous.h"
#include "tools/task.h"

namespace gradrail::tools {
namespace {

absl::Status invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

void print_line(const std::string& line) {
  fmt::print("# {}\n", line);
  std::fflush(stdout);
}

absl::Status check_counts(const TrainFlags& flags, const ps::Launch& launch, uint32_t ps_count) {
  if (launch.ps_count && flags.ps_given && flags.ps != *launch.ps_count)
    return invalid(
        fmt::format("--ps {}: {} has {} (DMLC_NUM_SERVER): leave the flag out, or --local for a cluster of its own",
                    flags.ps, launch.job, *launch.ps_count));
  if (ps_count >= launch.size)
    return invalid(fmt::format("--ps {}: {} has started {} tasks, and one of them has to be a worker", ps_count,
                               launch.job, launch.size));
  const uint32_t workers = launch.size - ps_count;
  if (workers > ps::kMaxWorkers)
    return invalid(fmt::format("{} workers by {}: there may be {}", workers, launch.job, ps::kMaxWorkers));
  if (flags.workers_given && flags.workers != workers)
    return invalid(
        fmt::format("--workers {}: {} has started {} tasks, of which --ps {} leaves {} workers: leave the flag out, or "
                    "--local for a cluster of its own",
                    flags.workers, launch.job, launch.size, ps_count, workers));
  return absl::OkStatus();
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// "worker/1 of 3, with 1 ps: rank 2 of 4 of Slurm job 17 step 0, node n2".
std::string explain(const TrainOptions& options) {
  const ps::Launch& launch = *options.launch;
  const bool is_ps = options.task.job == "ps";
  const size_t ps_count = options.cluster.ps.size(), workers = options.cluster.workers.size();
  const std::string others =
      is_ps ? fmt::format("{} worker{}", workers, workers == 1 ? "" : "s") : fmt::format("{} ps", ps_count);
  const std::string from = launch.role == ps::Launch::Role::by_rank
                               ? fmt::format("rank {} of {} of {}", *launch.rank, launch.size, launch.job)
                               : launch.job;
  return fmt::format("{}/{} of {}, with {}: {}, {} {}", options.task.job, options.task.index,
                     is_ps ? ps_count : workers, others, from, launch.node.empty() ? "host" : "node",
                     launch.node.empty() ? host_name() : launch.node);
}

void take_seat(TrainOptions& options, const Seat& seat) {
  options.task = seat.task;
  options.own_cpus = seat.own_cpus;
  options.place_on_host = seat.place_on_host;
  options.cluster.ps.clear();
  for (const std::string& host : seat.ps_hosts) options.cluster.ps.push_back(ps::to_string({.host = host, .port = 0}));
  options.cluster.workers = seat.worker_hosts;
}

absl::Status run_launched_ps(const TrainOptions& options, Rendezvous& others) {
  absl::Status published;
  const absl::Status ended = run_ps(options, [&](uint16_t port) {
    published = others.publish(port);
    if (!published.ok()) std::raise(SIGTERM);  // nobody can come any more: the ps ends as it would when it is told to
  });
  return published.ok() ? ended : published;
}

}  // namespace

absl::Status check_launch(TrainOptions& options) {
  const TrainFlags& flags = options.flags;
  if (flags.local || flags.ps == 0) {
    return flags.meet.empty()
               ? absl::OkStatus()
               : invalid(fmt::format("--meet {}: there is nobody to meet with --local or --ps 0", flags.meet));
  }
  absl::StatusOr<std::optional<ps::Launch>> launch = ps::read_launcher();
  if (!launch.ok()) return invalid(fmt::format("{}; --local ignores such variables", message_of(launch.status())));
  if (!launch->has_value()) {
    if (flags.meet.empty()) return absl::OkStatus();
    return invalid(
        fmt::format("--meet {}: neither srun, mpirun nor torchrun has started this task with others", flags.meet));
  }
  const uint32_t ps_count = (*launch)->ps_count.value_or(flags.ps);
  GRADRAIL_RETURN_IF_ERROR(check_counts(flags, **launch, ps_count));
  if (!flags.meet.empty()) (*launch)->meet = flags.meet;
  if ((*launch)->meet.empty())
    return invalid(
        fmt::format("{} does not say where its first task is: name that host with --meet HOST:PORT", (*launch)->job));
  const absl::StatusOr<ps::HostPort> meet = ps::parse_host_port((*launch)->meet);
  if (!meet.ok())
    return invalid(fmt::format("where the tasks of {} meet: {}", (*launch)->job, message_of(meet.status())));
  options.local = false;
  options.flags.ps = ps_count;
  options.cluster.ps.resize(ps_count);
  options.cluster.workers.resize((*launch)->size - ps_count);
  options.launch = *std::move(launch);
  return absl::OkStatus();
}

absl::Status run_launched(TrainOptions options) {
  std::string bind_host;
  if (!options.flags.bind.empty()) {
    const absl::StatusOr<ps::HostPort> bind = ps::parse_host_port(options.flags.bind);
    if (!bind.ok()) return invalid(fmt::format("--bind: {}", message_of(bind.status())));
    bind_host = bind->host;
  }
  // What is learnt there is not proven, and where all meet is open to everybody who reaches this host.
  GRADRAIL_RETURN_IF_ERROR(ps::check_exposure(options.security, options.launch->meet));
  const absl::StatusOr<std::unique_ptr<Rendezvous>> others =
      Rendezvous::meet({.launch = *options.launch,
                        .ps_count = options.flags.ps,
                        .bind_host = bind_host,
                        .patience = std::chrono::seconds(options.flags.join_timeout_s),
                        .say = print_line});
  if (!others.ok()) return others.status();
  if (options.launch->role == ps::Launch::Role::scheduler) {
    print_line(fmt::format("scheduler of {}: {} ps and {} workers have met", options.launch->job, options.flags.ps,
                           options.launch->size - options.flags.ps));
    return (*others)->publish(0);
  }
  take_seat(options, (*others)->seat());
  print_line(explain(options));
  if (options.task.job == "ps") return run_launched_ps(options, **others);
  absl::StatusOr<std::vector<std::string>> addresses = (*others)->ps_addresses();
  if (!addresses.ok()) return addresses.status();
  options.cluster.ps = *std::move(addresses);
  return run_worker(options);
}

}  // namespace gradrail::tools
