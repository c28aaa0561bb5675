#include "launch/start/start.h"

#include <utility>

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/status.h"
#include "launch/start/etcd_task.h"
#include "launch/start/launched_task.h"
#include "launch/supervise/local_cluster.h"
#include "launch/task/console.h"
#include "launch/task/worker_program.h"

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

}  // namespace

absl::Status run_task(const TaskOptions& options, const TaskBodies& bodies, SignalThread& signals,
                      const std::function<void(uint16_t port)>& listening) {
  if (is_program(options)) become_worker_program(options);
  GRADRAIL_ASSIGN_OR_RETURN(const HostPlan plan, plan_host(options));
  return run_body(options, plan, bodies, signals, listening);
}

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
