// The gradrail program: subcommands, and nothing else.
#include <fcntl.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/exit_codes.h"
#include "tools/gradrail/command_line.h"
#include "tools/gradrail/info.h"
#include "tools/supervise/local_cluster.h"
#include "tools/train/etcd_task.h"
#include "tools/train/host_plan.h"
#include "tools/train/launched_task.h"
#include "tools/train/signal_thread.h"
#include "tools/train/start_guard.h"
#include "tools/train/task.h"
#include "tools/train/tutorial_flags.h"
#include "tools/train/worker_program.h"

namespace gradrail::tools {
namespace {

int finish(const absl::Status& status) {
  // stderr gets the errors, so that a pipe after stdout receives results only.
  if (!status.ok()) print_text(stderr, "gradrail: {}\n", message_of(status));
  return exit_code(status);
}

absl::Status flush_output() {
  const bool is_flushed = std::fflush(stdout) == 0;
  if (is_flushed && std::ferror(stdout) == 0) return absl::OkStatus();
  const char* const why = is_flushed ? "an earlier write has failed" : std::strerror(errno);
  return absl::FailedPreconditionError(
      fmt::format("the output is incomplete: {} (free space, or send it to another file)", why));
}

/// The exit code of a command whose output is its result.
int finish_output(int code) {
  const absl::Status flushed = flush_output();
  if (flushed.ok()) return code;
  const int failed = finish(flushed);
  return code == kGood ? failed : code;
}

/// Returns the exit code of tasks, whose output is a log: a run is complete without it.
int finish_log(int code) {
  finish(flush_output());
  __fpurge(stdout);
  std::clearerr(stdout);
  return code;
}

void print_hints(const std::vector<std::string>& hints) {
  for (const std::string& hint : hints) fmt::print(stderr, "gradrail: {}\n", hint);
}

int examine(const DoctorFlags& flags, const std::string& plugin_dir) {
  if (absl::Status plugins = use_plugin_dir(plugin_dir); !plugins.ok()) return finish(plugins);
  const absl::StatusOr<bool> all_hold = run_doctor(flags);
  if (!all_hold.ok()) return finish(all_hold.status());
  return *all_hold ? kGood : kConfiguration;
}

int show_topology(const TopoFlags& flags) {
  const absl::StatusOr<bool> all_hold = run_topo(flags);
  if (!all_hold.ok()) return finish(all_hold.status());
  return *all_hold ? kGood : kConfiguration;
}

int inspect(const CheckpointFlags& flags) {
  const absl::StatusOr<bool> whole = run_checkpoint(flags);
  if (!whole.ok()) return finish(whole.status());
  return *whole ? kGood : kFailed;
}

int predict(const bench::predict::PredictFlags& flags) {
  const absl::StatusOr<bool> holds = bench::predict::run_predict(flags);
  // Files with other contents have other codes.
  if (absl::IsInvalidArgument(holds.status())) return finish(usage_error(holds.status()));
  if (!holds.ok()) return finish(holds.status());
  return *holds ? kGood : kFailed;
}

absl::Status run_task(const TrainOptions& options) {
  if (!options.program.empty() && options.task.job != "ps") become_worker_program(options);
  // SignalThread starts a thread; a fork of a process with threads copies only the calling one.
  const absl::StatusOr<HostPlan> plan = plan_host(options);  // may fork, which a second thread would hinder
  if (!plan.ok()) return plan.status();
  SignalThread signals(SignalThread::Task::kOwn);
  if (trains_alone(options)) return run_alone(options, *plan, signals);
  if (options.task.job == "ps") return run_ps(options, *plan, signals, [](uint16_t) {});
  return run_worker(options, *plan, signals);
}

/// A cluster on this host, or one task of a cluster.
int run_tasks(TrainOptions options) {
  if (is_evaluator(options)) {
    print_comment(options.program.empty() ? "evaluator: no evaluation job is needed, because each worker evaluates the "
                                            "model at the end of the run"
                                          : "evaluator: the program is not started, because a run has workers and "
                                            "parameter servers only: one of the workers may evaluate");
    return kGood;
  }
  // 0: a value that the user has set counts more than the flag.
  if (options.flags.verbose) setenv("GRADRAIL_LOG", "info", 0);  // the tasks of a local cluster inherit it
  if (is_local_cluster(options)) return run_local_cluster(std::move(options));
  const bool by_etcd = uses_etcd(options.flags);
  if (!by_etcd && !options.launch) return finish(run_task(options));
  // The rendezvous itself can take long: Ctrl-C must end it as well.
  SignalThread signals(SignalThread::Task::kRendezvous);
  // The call precedes the threads of the rendezvous: the task gets its name later.
  start_log("train");
  if (by_etcd) return finish(run_with_etcd(std::move(options), signals));
  return finish(run_launched(std::move(options), signals));
}

/// Runs the tasks that the checked flags describe.
template <class Check>
int start_tasks(const Check& check) {
  // A new thread inherits the mask. A signal must reach the signal thread, not a thread of a library.
  block_signals();  // precedes the start of threads by any library
  absl::StatusOr<TrainOptions> options = check();
  return options.ok() ? run_tasks(*std::move(options)) : finish(options.status());
}

/// A file or a connection would get the number of a standard descriptor that is closed, and then the output of this
/// process. A use of the number fails as before.
void hold_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

int run(int argc, char** argv) {
  hold_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` returns an error, which names the file
  // gRPC would print messages about its sources; a status reports the relevant ones. $GRPC_VERBOSITY=debug still works.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  CommandLine line;
  const int before_program = arguments_before_program(*line.app.get_subcommand("run"), argc, argv);
  line.run.program.assign(argv + before_program, argv + argc);
  const bool is_separated = before_program > 2 && std::string_view(argv[before_program - 1]) == "--";
  try {
    line.app.parse(before_program - (is_separated ? 1 : 0), argv);
  } catch (const CLI::ParseError& error) {  // CLI11 reports it by an exception only
    // 0 means --help or --version, which CLI11 also reports by an exception.
    if (line.app.exit(error) == 0) return kGood;
    // The flags of `train` replace them.
    if (line.app.got_subcommand("train"))
      print_hints(hints_for_tutorial_flags(absl::MakeSpan(argv, static_cast<size_t>(argc))));
    return kUsage;
  }
  if (absl::Status level = check_log_level(); !level.ok()) return finish(usage_error(level));
  const std::string command = line.app.get_subcommands().front()->get_name();
  if (command == "info") {
    const absl::Status plugins = use_plugin_dir(line.plugin_dir);
    const StartGuard guard("info");  // UCX aborts without a separate thread
    return plugins.ok() ? run_info() : finish(plugins);
  }
  if (command == "train") return finish_log(start_tasks([&] { return check_train_flags(line.train); }));
  if (command == "run") return finish_log(start_tasks([&] { return check_run_flags(line.run); }));
  if (command == "doctor") return examine(line.doctor, line.plugin_dir);
  if (command == "checkpoint") return inspect(line.checkpoint);
  if (command == "convert") return finish(run_convert(line.convert));
  if (command == "bench") return bench::run_bench(line.bench, argc, argv);
  if (command == "predict") return predict(line.predict);
  if (command == "top") return finish(run_top(line.top));
  return show_topology(line.topo);
}

}  // namespace
}  // namespace gradrail::tools

int main(int argc, char** argv) {
  gradrail::explain_aborts(gradrail::tools::kConfiguration);
  int code = gradrail::tools::kGood;
  try {
    code = gradrail::tools::run(argc, argv);
  } catch (const std::system_error&) {  // thrown by fmt::print(); finish_output() reports it
    if (std::ferror(stdout) == 0) throw;
  }
  return gradrail::tools::finish_output(code);
}
