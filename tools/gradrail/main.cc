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

#include "base/exit_codes.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/status.h"
#include "fmt/format.h"
#include "launch/start/start.h"
#include "launch/task/console.h"
#include "launch/task/signal_thread.h"
#include "launch/task/start_guard.h"
#include "tools/gradrail/command_line.h"
#include "tools/gradrail/info.h"
#include "tools/train/task.h"
#include "tools/train/tutorial_flags.h"

namespace gradrail::tools {
namespace {

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
  const int failed = launch::report(flushed);
  return code == kGood ? failed : code;
}

/// Returns the exit code of tasks, whose output is a log: a run is complete without it.
int finish_log(int code) {
  launch::report(flush_output());
  __fpurge(stdout);
  std::clearerr(stdout);
  return code;
}

void print_hints(const std::vector<std::string>& hints) {
  for (const std::string& hint : hints) fmt::print(stderr, "gradrail: {}\n", hint);
}

int examine(const DoctorFlags& flags, const std::string& plugin_dir) {
  if (absl::Status plugins = use_plugin_dir(plugin_dir); !plugins.ok()) return launch::report(plugins);
  const absl::StatusOr<bool> all_hold = run_doctor(flags);
  if (!all_hold.ok()) return launch::report(all_hold.status());
  return *all_hold ? kGood : kConfiguration;
}

int show_topology(const TopoFlags& flags) {
  const absl::StatusOr<bool> all_hold = run_topo(flags);
  if (!all_hold.ok()) return launch::report(all_hold.status());
  return *all_hold ? kGood : kConfiguration;
}

int inspect(const CheckpointFlags& flags) {
  const absl::StatusOr<bool> whole = run_checkpoint(flags);
  if (!whole.ok()) return launch::report(whole.status());
  return *whole ? kGood : kFailed;
}

int predict(const bench::predict::PredictFlags& flags) {
  const absl::StatusOr<bool> holds = bench::predict::run_predict(flags);
  // Files with other contents have other codes.
  if (absl::IsInvalidArgument(holds.status())) return launch::report(usage_error(holds.status()));
  if (!holds.ok()) return launch::report(holds.status());
  return *holds ? kGood : kFailed;
}

/// Runs the tasks that the checked flags describe.
template <class Check>
int start_tasks(const Check& check) {
  // A new thread inherits the mask. A signal must reach the signal thread, not a thread of a library.
  launch::block_signals();  // before any library starts a thread
  const absl::StatusOr<TrainOptions> options = check();
  if (!options.ok()) return launch::report(options.status());
  // 0: a value that the user has set counts more than the flag.
  if (options->verbose) setenv("GRADRAIL_LOG", "info", 0);  // the tasks of a local cluster inherit it
  return launch::run_tasks(options->start, task_bodies(*options));
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
  line.run.start.program.assign(argv + before_program, argv + argc);
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
  if (absl::Status level = check_log_level(); !level.ok()) return launch::report(usage_error(level));
  const std::string command = line.app.get_subcommands().front()->get_name();
  if (command == "info") {
    const absl::Status plugins = use_plugin_dir(line.plugin_dir);
    const launch::StartGuard guard("info");  // UCX aborts without a thread of its own
    return plugins.ok() ? run_info() : launch::report(plugins);
  }
  if (command == "train") return finish_log(start_tasks([&] { return check_train_options(line.train); }));
  if (command == "run") return finish_log(start_tasks([&] { return check_run_options(line.run); }));
  if (command == "doctor") return examine(line.doctor, line.plugin_dir);
  if (command == "checkpoint") return inspect(line.checkpoint);
  if (command == "convert") return launch::report(run_convert(line.convert));
  if (command == "bench") return bench::run_bench(line.bench, argc, argv);
  if (command == "predict") return predict(line.predict);
  if (command == "top") return launch::report(run_top(line.top));
  return show_topology(line.topo);
}

}  // namespace
}  // namespace gradrail::tools

int main(int argc, char** argv) {
  gradrail::explain_aborts(gradrail::kConfiguration);
  int code = gradrail::kGood;
  try {
    code = gradrail::tools::run(argc, argv);
  } catch (const std::system_error&) {  // thrown by fmt::print(); finish_output() reports it
    if (std::ferror(stdout) == 0) throw;
  }
  return gradrail::tools::finish_output(code);
}
