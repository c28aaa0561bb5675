#include "launch/start/start.h"

#include <unistd.h>

#include <utility>

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/net_address.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/etcd/ps_lookup.h"
#include "launch/etcd/registration.h"
#include "launch/rendezvous/rendezvous.h"
#include "launch/supervise/local_cluster.h"
#include "launch/task/backup_ps.h"
#include "launch/task/console.h"
#include "launch/task/worker_program.h"
#include "ps/protocol/security.h"

namespace gradrail::launch {
namespace {

bool is_program(const TaskOptions& options) { return !options.program.empty() && options.task.job != "ps"; }

absl::Status run_body(const TaskOptions& options, const HostPlan& plan, const TaskBodies& bodies, SignalThread& signals,
                      const std::function<void(uint16_t port)>& listening) {
  if (options.task.job == "ps") return bodies.run_ps(options, plan, signals, listening, {});
  return bodies.run_worker(options, plan, signals, {});
}

/// The cluster description states the task.
absl::Status run_described(const TaskOptions& options, const TaskBodies& bodies) {
  if (is_program(options)) become_worker_program(options);
  // SignalThread starts a thread; a fork of a process with threads copies only the calling one.
  GRADRAIL_ASSIGN_OR_RETURN(const HostPlan plan, plan_host(options));  // may fork, which a second thread would hinder
  SignalThread signals(SignalThread::Task::kOwn);
  return run_body(options, plan, bodies, signals, {});
}

/// Runs `options.task` in this process. `signals` has a thread already.
absl::Status run_task(const TaskOptions& options, const TaskBodies& bodies, SignalThread& signals,
                      const std::function<void(uint16_t port)>& listening = {}) {
  if (is_program(options)) become_worker_program(options);
  GRADRAIL_ASSIGN_OR_RETURN(const HostPlan plan, plan_host(options));
  return run_body(options, plan, bodies, signals, listening);
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// The host of --bind, unless that is every address of this host: others need one of them.
std::string bind_host(const TaskOptions& options) {
  // "": etcd's answer then shows which address of this host others reach.
  return is_any_host(options.bind.host) ? "" : options.bind.host;
}

/// A task that finds the others by etcd.
absl::Status run_with_etcd(TaskOptions options, const TaskBodies& bodies, SignalThread& signals) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<PsLookup> lookup, PsLookup::open(options.rendezvous, options.ps));
  options.ps_address = [&](uint32_t index) { return lookup->address(index); };
  print_comment(fmt::format("{}/{} of {} ps and {} workers: by {}", options.task.job, options.task.index, options.ps,
                            options.workers, options.rendezvous.text));
  if (options.task.job == "worker") {
    // A worker beyond the size of the run joins later and has no entry in the list.
    if (options.task.index < options.workers)
      options.cluster.workers[options.task.index] = fmt::format("{} pid {}", host_name(), getpid());
    return run_task(options, bodies, signals);
  }
  GRADRAIL_ASSIGN_OR_RETURN(const std::unique_ptr<Registration> registration,
                            Registration::take({.where = options.rendezvous,
                                                .ps_index = options.task.index,
                                                .host = bind_host(options),
                                                .timeout = std::chrono::seconds(options.join_timeout_seconds),
                                                .say = print_comment}));
  // Port 0: the kernel selects a free one, which is known once the ps listens.
  options.cluster.ps[options.task.index] = to_string({.host = registration->host(), .port = 0});
  return run_task(options, bodies, signals, [&](uint16_t port) { registration->publish(port); });
}

/// "worker/1 of 3, with 1 ps: rank 2 of 4 of Slurm job 17 step 0, node n2".
std::string explain(const TaskOptions& options) {
  const Launch& launch = *options.launch;
  const bool is_ps = options.task.job == "ps";
  const size_t ps_count = options.cluster.ps.size(), workers = options.cluster.workers.size();
  const std::string others =
      is_ps ? fmt::format("{} worker{}", workers, workers == 1 ? "" : "s") : fmt::format("{} ps", ps_count);
  // Slurm names its nodes; other launchers give no name, so the host's own is used.
  return fmt::format("{}/{} of {}, with {}: rank {} of {} of {}, {} {}", options.task.job, options.task.index,
                     is_ps ? ps_count : workers, others, launch.rank, launch.size, launch.job,
                     launch.node.empty() ? "host" : "node", launch.node.empty() ? host_name() : launch.node);
}

void take_assignment(TaskOptions& options, const proto::RankAssignment& assignment) {
  const uint32_t rank = options.launch->rank;
  options.task =
      rank < options.ps ? TaskId{.job = "ps", .index = rank} : TaskId{.job = "worker", .index = rank - options.ps};
  options.own_cpus = assignment.own_cpus();
  options.place_on_host = static_cast<uint16_t>(assignment.place_on_host());
  options.cluster.ps.clear();
  for (const std::string& host : assignment.ps_hosts())
    // Port 0: the rendezvous passes on the ports once all ps listen.
    options.cluster.ps.push_back(to_string({.host = host, .port = 0}));
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

/// One task of a launcher: meets the others, then is what they agreed upon.
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
  take_assignment(options, others->assignment());
  print_comment(explain(options));
  const bool is_ps = options.task.job == "ps";
  // A worker needs the ports that the kernel has assigned to all ps tasks, and a primary that of its backup.
  if (!is_ps || has_backup(options)) {
    GRADRAIL_ASSIGN_OR_RETURN(options.cluster.ps, others->ps_addresses());
  }
  return is_ps ? run_launched_ps(options, bodies, *others, signals) : run_task(options, bodies, signals);
}

}  // namespace

int run_tasks(TaskOptions options, const TaskBodies& bodies) {
  if (is_evaluator(options)) {
    print_comment(options.program.empty() ? "evaluator: no evaluation job is needed, because each worker evaluates the "
                                            "model at the end of the run"
                                          : "evaluator: the program is not started, because a run has workers and "
                                            "parameter servers only: one of the workers may evaluate");
    return kGood;
  }
  if (options.local && !trains_alone(options)) return run_local_cluster(std::move(options), bodies);
  const bool by_etcd = options.rendezvous.is_etcd();
  if (!by_etcd && !options.launch) return report(run_described(options, bodies));
  // The rendezvous itself can take long: Ctrl-C must end it as well.
  SignalThread signals(SignalThread::Task::kRendezvous);
  // Before the threads of the rendezvous: the task gets its name later.
  start_log("train");
  if (by_etcd) return report(run_with_etcd(std::move(options), bodies, signals));
  return report(run_launched(std::move(options), bodies, signals));
}

}  // namespace gradrail::launch
