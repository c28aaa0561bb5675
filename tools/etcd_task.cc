#include "tools/etcd_task.h"

#include <unistd.h>

#include <cstdio>

#include "base/status.h"
#include "fmt/format.h"
#include "tools/etcd/membership.h"
#include "tools/task.h"

namespace gradrail::tools {
namespace {

absl::Status invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

void print_line(const std::string& line) {
  fmt::print("# {}\n", line);
  std::fflush(stdout);
}

/// The host of --bind, unless that is every address of this host: others need one of them.
absl::StatusOr<std::string> bind_host(const TrainFlags& flags) {
  if (flags.bind.empty()) return std::string();
  const absl::StatusOr<ps::HostPort> bind = ps::parse_host_port(flags.bind);
  if (!bind.ok()) return invalid(fmt::format("--bind: {}", message_of(bind.status())));
  return bind->host == "0.0.0.0" || bind->host == "::" ? std::string() : bind->host;
}

absl::StatusOr<std::unique_ptr<Membership>> take_place(const TrainOptions& options) {
  const TrainFlags& flags = options.flags;
  absl::StatusOr<RendezvousUrl> where = parse_rendezvous(flags.rendezvous);
  if (!where.ok()) return where.status();
  const absl::StatusOr<std::string> host = bind_host(flags);
  if (!host.ok()) return host.status();
  Applicant applicant{.where = *std::move(where),
                      .job = flags.job_name,
                      .index = std::nullopt,
                      .sizes = std::nullopt,
                      .host = *host,
                      .patience = std::chrono::seconds(flags.join_timeout_s),
                      .say = print_line};
  if (flags.task_index >= 0) applicant.index = static_cast<uint32_t>(flags.task_index);
  if (flags.ps_given) applicant.sizes = {.ps = flags.ps, .workers = flags.workers};
  return Membership::join(applicant);
}

/// The options of a task of that place: nobody's address but our own is known.
absl::Status settle(TrainOptions& options, const Membership& membership) {
  const Sizes& sizes = membership.sizes();
  if (options.mode.kind == ps::ModeKind::backup && options.mode.bound >= sizes.workers)
    return invalid(fmt::format("--mode {}: of {} workers at most {} can be spared", options.flags.mode, sizes.workers,
                               sizes.workers - 1));
  options.task = membership.task();
  options.flags.ps = sizes.ps;
  options.flags.workers = sizes.workers;
  options.cluster.ps.assign(sizes.ps, "");
  options.cluster.workers.assign(sizes.workers, "has not come yet");
  if (options.task.job == "ps") {
    options.cluster.ps[options.task.index] = ps::to_string({.host = membership.host(), .port = 0});
  } else if (options.task.index < sizes.workers) {
    options.cluster.workers[options.task.index] = fmt::format("{} pid {}", membership.host(), getpid());
  }
  // Alone as far as the plan knows: it binds only where somebody has said which cpus are ours.
  options.own_cpus = true;
  if (options.cores) return absl::OkStatus();
  options.why_unbound = "not bound (who else comes to this host is not known: give each task its --cores)";
  if (options.flags.wait == "auto") options.flags.wait = "block";
  return absl::OkStatus();
}

std::string explain(const TrainOptions& options) {
  const bool is_ps = options.task.job == "ps";
  const uint32_t ours = is_ps ? options.flags.ps : options.flags.workers;
  const uint32_t others = is_ps ? options.flags.workers : options.flags.ps;
  const std::string place =
      options.task.index < ours
          ? fmt::format("{}/{} of {}", options.task.job, options.task.index, ours)
          : fmt::format("{}/{}, beyond the {} that the run began with", options.task.job, options.task.index, ours);
  const char* const plural = is_ps && others != 1 ? "s" : "";
  return fmt::format("{}, with {} {}{}: by {}", place, others, is_ps ? "worker" : "ps", plural,
                     options.flags.rendezvous);
}

}  // namespace

absl::Status check_rendezvous(TrainOptions& options) {
  const TrainFlags& flags = options.flags;
  GRADRAIL_RETURN_IF_ERROR(parse_rendezvous(flags.rendezvous).status());
  if (flags.local || !flags.cluster.empty() || !flags.ps_hosts.empty() || !flags.worker_hosts.empty() ||
      !flags.meet.empty())
    return invalid(
        "--rendezvous finds the other tasks: leave out --cluster, --ps_hosts, --worker_hosts, --meet and --local");
  if (flags.job_name != "ps" && flags.job_name != "worker")
    return invalid(
        fmt::format("--rendezvous with --job_name '{}': each task is a ps or a worker; its --task_index may be "
                    "left out",
                    flags.job_name));
  if (flags.task_index < -1 || flags.task_index > UINT32_MAX)
    return invalid(fmt::format("--task_index {}: indices count from 0", flags.task_index));
  if (flags.ps_given != flags.workers_given)
    return invalid(
        "--rendezvous: say --ps and --workers together (how large the run is), or leave both out where another task "
        "says them");
  if (flags.ps_given && flags.ps == 0) return invalid("--ps 0: with --rendezvous a run has at least one ps");
  options.local = false;
  // As many as there can be, until somebody says.
  options.cluster.workers.resize(flags.workers_given ? flags.workers : ps::kMaxWorkers);
  return absl::OkStatus();
}

absl::Status run_with_etcd(TrainOptions options) {
  const absl::StatusOr<std::unique_ptr<Membership>> membership = take_place(options);
  if (!membership.ok()) return membership.status();
  GRADRAIL_RETURN_IF_ERROR(settle(options, **membership));
  print_line(explain(options));
  if (options.task.job == "ps") return run_ps(options, [&](uint16_t port) { (*membership)->publish(port); });
  options.ps_address = [&](uint32_t index) { return (*membership)->ps_address(index); };
  return run_worker(options);
}

}  // namespace gradrail::tools
