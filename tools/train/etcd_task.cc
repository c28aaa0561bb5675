#include "tools/train/etcd_task.h"

#include <unistd.h>

#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/etcd/membership.h"
#include "tools/exit_codes.h"
#include "tools/train/backup_ps.h"
#include "tools/train/task.h"

namespace gradrail::tools {
namespace {

/// The host of --bind, unless that is every address of this host: others need one of them.
absl::StatusOr<std::string> bind_host(const TrainFlags& flags) {
  if (flags.bind.empty()) return std::string();
  const absl::StatusOr<ps::HostPort> bind = ps::parse_host_port(flags.bind);
  if (!bind.ok()) return absl::InvalidArgumentError(fmt::format("--bind: {}", message_of(bind.status())));
  // "": etcd's answer then shows which address of this host others reach.
  return is_any_host(bind->host) ? std::string() : bind->host;
}

absl::StatusOr<std::unique_ptr<launch::Membership>> take_place(const TrainOptions& options) {
  const TrainFlags& flags = options.flags;
  GRADRAIL_ASSIGN_OR_RETURN(launch::RendezvousUrl where, launch::parse_rendezvous(flags.rendezvous));
  GRADRAIL_ASSIGN_OR_RETURN(const std::string host, bind_host(flags));
  launch::MembershipRequest request{.where = std::move(where),
                                    .job = flags.job_name,
                                    .index = std::nullopt,
                                    .sizes = std::nullopt,
                                    .host = host,
                                    .timeout = std::chrono::seconds(flags.join_timeout_seconds),
                                    .say = print_comment};
  if (flags.task_index >= 0) request.index = static_cast<uint32_t>(flags.task_index);
  // check_rendezvous() has made sure that both numbers are given or none.
  if (flags.ps_given) request.sizes = {.ps = flags.ps, .workers = flags.workers};
  return launch::Membership::join(request);
}

/// The options of a task of that place: only our own address is known.
absl::Status settle(TrainOptions& options, const launch::Membership& membership) {
  const launch::Sizes& sizes = membership.sizes();
  // check_train_flags() could not check this: the number of workers was unknown then.
  options.mode.worker_count = sizes.workers;
  GRADRAIL_RETURN_IF_ERROR(ps::check_bound(options.mode));
  GRADRAIL_RETURN_IF_ERROR(check_min_workers(options.flags, sizes.workers));
  options.task = membership.task();
  options.flags.ps = sizes.ps;
  options.flags.workers = sizes.workers;
  // Only the number counts here: `ps_address` finds an address when a connection needs it.
  options.cluster.ps.assign(sizes.ps, "");
  options.cluster.workers.assign(sizes.workers, "has not joined yet");
  if (options.task.job == "ps") {
    // Port 0: the kernel selects a free one, and run_ps() publishes it.
    options.cluster.ps[options.task.index] = ps::to_string({.host = membership.host(), .port = 0});
  } else if (options.task.index < sizes.workers) {
    // A worker beyond the size of the run has joined later and has no entry in the list.
    options.cluster.workers[options.task.index] = fmt::format("{} pid {}", membership.host(), getpid());
  }
  // Alone as far as the plan shows: it binds only where a flag has said which cpus are ours.
  options.own_cpus = true;
  // With --cores the user has divided the host, and the binding cannot collide.
  if (options.cores) return absl::OkStatus();
  options.why_unbound = "not bound (other tasks of this host are not known: give each task its --cores)";
  // Unknown tasks may share the cores: a spinning wait would take their time.
  if (options.flags.wait == "auto") options.flags.wait = "block";
  return absl::OkStatus();
}

std::string explain_place(const TrainOptions& options) {
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

bool uses_etcd(const TrainFlags& flags) {
  return !flags.rendezvous.empty() && !launch::is_tcp_rendezvous(flags.rendezvous);
}

absl::Status check_rendezvous_url(const std::string& url) {
  return launch::is_tcp_rendezvous(url) ? launch::parse_tcp_rendezvous(url).status()
                                        : launch::parse_rendezvous(url).status();
}

absl::Status check_rendezvous(TrainOptions& options) {
  const TrainFlags& flags = options.flags;
  if (flags.local || !flags.cluster.empty() || !flags.ps_hosts.empty() || !flags.worker_hosts.empty())
    return usage_error(absl::InvalidArgumentError(
        "--rendezvous finds the other tasks: leave out --cluster, --ps_hosts, --worker_hosts and --local"));
  if (flags.job_name != "ps" && flags.job_name != "worker")
    return absl::InvalidArgumentError(
        fmt::format("--rendezvous with --job_name '{}': each task is a ps or a worker; its --task_index may be "
                    "left out",
                    flags.job_name));
  // -1: no index was given. The key in etcd holds 32 bits.
  if (flags.task_index < -1 || flags.task_index > UINT32_MAX)
    return absl::InvalidArgumentError(fmt::format("--task_index {}: indices count from 0", flags.task_index));
  // Either number alone would leave a task without the size of the other group.
  if (flags.ps_given != flags.workers_given)
    return absl::InvalidArgumentError(
        "--rendezvous: give --ps and --workers together (the size of the run), or omit both if another task gives "
        "them");
  if (flags.ps_given && flags.ps == 0)
    return absl::InvalidArgumentError("--ps 0: with --rendezvous a run has at least one ps");
  options.local = false;
  // As many as there can be, until a task says.
  options.cluster.workers.resize(flags.workers_given ? flags.workers : ps::kMaxWorkers);
  return absl::OkStatus();
}

absl::Status run_with_etcd(TrainOptions options, SignalThread& signals) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<launch::Membership> membership, take_place(options));
  GRADRAIL_RETURN_IF_ERROR(settle(options, *membership));
  // Another task may have stated the number of ps tasks.
  GRADRAIL_RETURN_IF_ERROR(check_backup_ps(options));
  options.ps_address = [&](uint32_t index) { return membership->ps_address(index); };
  print_comment(explain_place(options));
  // The port is known only after the ps listens: until then its key names the host alone.
  if (options.task.job == "ps") return run_ps(options, signals, [&](uint16_t port) { membership->publish(port); });
  return run_worker(options, signals);
}

}  // namespace gradrail::tools
