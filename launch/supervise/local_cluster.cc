#include "launch/supervise/local_cluster.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random_bits.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "launch/supervise/task_printer.h"
#include "launch/supervise/task_process.h"
#include "launch/supervise/terminal.h"
#include "launch/task/console.h"
#include "launch/task/signal_thread.h"
#include "launch/task/worker_program.h"

namespace gradrail::launch {
namespace {

/// After a task has failed the others notice within this (a lost ps: 5 s); then they are killed.
constexpr auto kGrace = std::chrono::seconds(8);
/// For the workers after a request to stop: the chief ends its step, tests the model and saves the last checkpoint. A
/// second signal ends this wait.
constexpr auto kSaveGrace = std::chrono::seconds(60);
/// The same after Ctrl-C, for programs: a person waits. The end of the ps follows, and all of it is below 5 s.
constexpr Duration kInterruptGrace = std::chrono::milliseconds(3500);
/// After a request to stop, for the tasks that have not ended to be named.
constexpr Duration kNameAfter = std::chrono::milliseconds(1500);
/// The ps end by themselves when the last worker has left; those that still expect one get a signal after this. The
/// output of a task that has ended is read for as long.
constexpr Duration kOutputGracePeriod = std::chrono::seconds(1);
/// For the others to find out by themselves that a task has failed, and to say so.
constexpr Duration kFailureGracePeriod = std::chrono::seconds(3);
constexpr size_t kRunBytes = 8;
/// A ps with a GPU starts the driver first, which takes seconds.
constexpr auto kStartDeadline = std::chrono::seconds(30);
constexpr uint32_t kLongestReturnSeconds = 30;
constexpr uint32_t kProgramJoinSeconds = 120;  ///< the ps tasks may restore a checkpoint in this time

/// The timeout of a poll() that ends at that moment, not before.
int poll_timeout_ms(TimePoint until) {
  if (until == TimePoint::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

/// gRPC neither reports nor survives a thread that the kernel refuses. So the tasks start only if all threads fit.
/// Errors  RESOURCE_EXHAUSTED: the limit of processes and threads, and the number that the run needs.
absl::Status check_tasks(const TaskOptions& options) {
  const auto cores = static_cast<uint64_t>(std::max(2L, sysconf(_SC_NPROCESSORS_CONF)));
  const uint64_t of_task = threads_with_grpc();
  const uint64_t of_worker =
      options.program.empty() ? of_task + (options.tower_count > 1 ? options.tower_count : 0) : 1;
  const absl::Status checked =
      check_available_tasks(fmt::format("{} ps and {} workers need", options.ps, options.workers),
                            options.ps * (of_task + cores + options.shards) + options.workers * of_worker);
  if (checked.ok()) return checked;
  return absl::ResourceExhaustedError(fmt::format("{}; or give fewer --workers", message_of(checked)));
}

class LocalCluster {
 public:
  LocalCluster(TaskOptions options, HostPlan plan, const TaskBodies& bodies, SharedMemory joined);
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;
  absl::Status open();
  int run();

 private:
  TaskProcess spawn(const std::string& name, std::function<int()> body, bool is_program = false,
                    bool is_interactive = false);
  bool start_ps();
  TaskProcess spawn_ps(uint32_t index, Pipe* port_pipe);
  bool may_restart(const TaskProcess& process) const;
  bool is_stopping() const { return asked_at_ != TimePoint::max() || stop_at_ != TimePoint::max(); }
  /// By Ctrl-C: the programs have no time to save.
  bool is_interrupted() const { return stop_signal_ == SIGINT && !options_.program.empty(); }
  bool run_goes_on() const { return !is_stopping() && workers_run(processes_); }
  void restart_tasks();
  void stop_late_workers();
  TaskProcess spawn_worker(uint32_t index, bool is_again);
  bool start_workers();
  void supervise();
  void program_failed(TaskProcess& process);
  bool wait_for_port(int port_pipe, uint16_t& port);
  void pump(TimePoint until);
  void take_signals();
  void asked_to_stop(int signal_number);
  void print(const TaskProcess& process, std::string_view part, bool ends_line);
  template <typename... Values>
  void say(fmt::format_string<Values...> format, Values&&... values) {
    printer_.end_lines();
    print_text(stderr, format, std::forward<Values>(values)...);
  }
  void name_running();
  void reap();
  void stopped(TaskProcess& process, int signal_number);
  void ended(TaskProcess& process, int status);
  bool is_awaited_in_vain(const TaskProcess& process) const;
  bool find_absent_program();
  std::atomic<bool>& has_joined(uint32_t worker) const {
    return reinterpret_cast<std::atomic<bool>*>(joined_.data())[worker];
  }
  void signal_all(int signal_number);
  void stop(const TaskProcess& process) const;
  void stop_tasks(bool also_ps) const;
  int result() const;

  TaskOptions options_;
  const HostPlan plan_;
  const TaskBodies& bodies_;
  std::optional<uint64_t> kills_ = out_of_memory_kills();  ///< at the last end of a task
  const SharedMemory joined_;  ///< a flag of each worker that has joined; it sets the flag, or a ps that of a program
  std::vector<TaskProcess> processes_;
  FileDescriptor signals_;  ///< signalfd: a request to stop or to dump, the end of a task
  TimePoint asked_at_ = TimePoint::max();
  uint32_t restarts_ = 0;  ///< of all ps together
  int stop_signal_ = SIGTERM;
  bool killing_ = false;
  int failed_code_ = kGood;  ///< of the first worker program that failed
  TimePoint stop_at_ = TimePoint::max();
  TimePoint kill_at_ = TimePoint::max();
  TimePoint name_at_ = TimePoint::max();  ///< the tasks that have not ended on request are named
  Terminal terminal_;
  TaskPrinter printer_;
};

LocalCluster::LocalCluster(TaskOptions options, HostPlan plan, const TaskBodies& bodies, SharedMemory joined)
    : options_(std::move(options)), plan_(std::move(plan)), bodies_(bodies), joined_(std::move(joined)) {}

absl::Status LocalCluster::open() {
  // The supervisor has two pipes for each task, and each task has copies of them.
  constexpr uint64_t kOwnFiles = 256, kFilesOfTask = 4;
  const uint64_t tasks = uint64_t{options_.ps} + options_.workers;
  GRADRAIL_RETURN_IF_ERROR(allow_open_files(kOwnFiles + kFilesOfTask * tasks));
  GRADRAIL_RETURN_IF_ERROR(check_tasks(options_));
  sigset_t taken = taken_signals();
  sigdelset(&taken, kStopOfSupervisor);
  sigaddset(&taken, SIGCHLD);
  sigprocmask(SIG_BLOCK, &taken, nullptr);
  // Hosts that share a checkpoint folder may have equal names and process numbers, such as containers.
  const std::string bytes = random_bytes(kRunBytes);
  options_.local_run =
      fmt::format("local cluster {} of process {}", absl::BytesToHexString({bytes.data(), bytes.size()}), getpid());
  std::signal(SIGCHLD, SIG_DFL);  // ignored, as a parent may leave it, no exit code would be kept for waitpid()
  signals_.reset(signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC));
  // Without it no signal and no end of a task would be noticed.
  return signals_ ? absl::OkStatus() : kernel_refusal("signalfd", errno);
}

TaskProcess LocalCluster::spawn(const std::string& name, std::function<int()> body, bool is_program,
                                bool is_interactive) {
  printer_.end_lines();  // it prints a line
  TaskProcess process = fork_task({.name = name,
                                   .body = std::move(body),
                                   .is_program = is_program,
                                   .is_interactive = is_interactive,
                                   .signals = signals_.get()},
                                  processes_);
  if (is_interactive && process.running) terminal_.give(process.pid);
  return process;
}

/// A request to stop does not end the wait: the ps comes up, and is stopped like any other.
bool LocalCluster::wait_for_port(int port_pipe, uint16_t& port) {
  const TimePoint deadline = Clock::now() + kStartDeadline;
  while (Clock::now() < deadline) {
    pollfd fds[] = {{.fd = port_pipe, .events = POLLIN, .revents = 0},
                    {.fd = signals_.get(), .events = POLLIN, .revents = 0}};
    if (poll(fds, 2, poll_timeout_ms(deadline)) < 0 && errno != EINTR) return false;
    if (fds[1].revents != 0) take_signals();
    // A ps that ended without a port gives an end of file, which is a failure at once.
    if (fds[0].revents != 0) return read(port_pipe, &port, sizeof(port)) == sizeof(port);
  }
  return false;
}

/// The child writes its port to `port_pipe`, if there is one.
TaskProcess LocalCluster::spawn_ps(uint32_t index, Pipe* port_pipe) {
  const std::string name = fmt::format("ps/{}", index);
  TaskOptions options = options_;
  options.task = {"ps", index};
  TaskProcess process = spawn(name, [&] {
    if (port_pipe != nullptr) port_pipe->reader.reset();
    const auto listening = [&](uint16_t port) {
      if (port_pipe == nullptr) return;
      if (write(port_pipe->writer.get(), &port, sizeof(port)) != sizeof(port)) _exit(kFailed);
      port_pipe->writer.reset();
    };
    // A program cannot set its flag. A task index may be larger than the number of workers.
    const auto joined = [&](uint32_t worker) {
      if (!options.program.empty() && worker < options.workers) has_joined(worker) = true;
    };
    SignalThread signals(SignalThread::Task::kLocalPs);
    return report(bodies_.run_ps(options, plan_, signals, listening, joined), name);
  });
  process.index = index;
  return process;
}

bool LocalCluster::start_ps() {
  for (uint32_t i = 0; i < options_.workers; ++i) options_.cluster.workers.push_back(fmt::format("localhost/{}", i));
  for (uint32_t i = 0; i < options_.ps; ++i) options_.cluster.ps.push_back("127.0.0.1:0");
  for (uint32_t n = 0; n < options_.ps; ++n) {
    // Backups first: a task gets the address of its own.
    const uint32_t i = options_.backup_ps > 0 ? options_.ps - 1 - n : n;
    absl::StatusOr<Pipe> ports = open_pipe();
    if (!ports.ok()) {
      failed_code_ = report(ports.status(), fmt::format("ps/{}", i));
      return false;
    }
    processes_.push_back(spawn_ps(i, &*ports));
    // The last writer besides the child: without this close the end of a failed ps would not end the wait.
    ports->writer.reset();
    uint16_t port = 0;
    const bool came_up = wait_for_port(ports->reader.get(), port);
    // run() stops what has started and returns the exit code of the ps that failed.
    if (!came_up) return false;
    options_.cluster.ps[i] = fmt::format("127.0.0.1:{}", port);
  }
  return true;
}

TaskProcess LocalCluster::spawn_worker(uint32_t index, bool is_again) {
  // A copy: each task gets its own index, and `options_` has the addresses of all ps.
  TaskOptions options = options_;
  options.task = {"worker", index};
  // The run may end before a worker joins that is started again. A ps that is lost at the same time is back earlier.
  uint32_t& limit = options.join_timeout_seconds;
  if (is_again) limit = std::min(limit, kLongestReturnSeconds);
  // All ps tasks listen already. But a program may call join() again after the end of the run.
  const bool is_program = !options.program.empty();
  if (is_program && limit == TaskOptions().join_timeout_seconds) limit = kProgramJoinSeconds;
  if (is_program) has_joined(index) = false;  // a former one may have
  const std::string name = fmt::format("worker/{}", index);
  const auto train = [&] {
    SignalThread signals(SignalThread::Task::kLocalWorker);
    return report(bodies_.run_worker(options, plan_, signals, [&] { has_joined(index) = true; }), name);
  };
  TaskProcess process = spawn(
      name,
      [&] {
        if (is_program) become_worker_program(options);
        return train();
      },
      is_program, options.interactive == index);
  process.is_chief = index == 0;
  process.is_worker = true;
  process.is_again = is_again;
  process.index = index;
  return process;
}

/// False: a worker cannot be started, and the others would wait for it.
bool LocalCluster::start_workers() {
  for (uint32_t i = 0; i < options_.workers; ++i) {
    processes_.push_back(spawn_worker(i, false));
    if (!processes_.back().running) return false;
  }
  return true;
}

void LocalCluster::print(const TaskProcess& process, std::string_view part, bool ends_line) {
  if (process.is_group) return printer_.print(stdout, process.name, part, ends_line);
  const std::string line(part);
  if (process.is_chief) return print_line(line);
  // The chief's step lines are those of the run.
  if (!process.is_worker || !bodies_.is_step_line(line)) print_line(fmt::format("[{}] {}", process.name, line));
}

/// Waits for output, a signal or the end of a task.
void LocalCluster::pump(TimePoint until) {
  std::vector<pollfd> fds = {{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
  std::vector<std::function<void()>> takers = {[this] { take_signals(); }};
  const auto add = [&](OutputStream& stream, PrintPart print) {
    if (stream.fd() < 0) return;
    stream.print_due(print);
    until = std::min(until, stream.due());
    fds.push_back({.fd = stream.fd(), .events = POLLIN, .revents = 0});
    takers.emplace_back([&stream, print = std::move(print)] { stream.take(print); });
  };
  for (TaskProcess& process : processes_) {
    const auto print_output = [this, &process](std::string_view part, bool ends_line) {
      print(process, part, ends_line);
    };
    const auto print_error = [this, &process](std::string_view part, bool ends_line) {
      printer_.print(stderr, process.name, part, ends_line);
    };
    if (Clock::now() >= process.output_until && process.has_output()) {
      if (process.end_output(print_output, print_error))
        say("gradrail: {} has ended, and a process that it started keeps its output open: closed\n", process.name);
      until = Clock::now();  // the task may be due to be started again
    }
    if (process.has_output()) until = std::min(until, process.output_until);
    add(process.output, print_output);
    add(process.errors, print_error);
  }
  // Also an interrupted poll(): the caller loops and computes its deadlines again.
  if (poll(fds.data(), fds.size(), poll_timeout_ms(until)) <= 0) return;
  for (size_t i = 0; i < fds.size(); ++i) {
    if (fds[i].revents != 0) takers[i]();
  }
}

void LocalCluster::take_signals() {
  signalfd_siginfo info;
  // SIGCHLD needs no branch: it ends the poll(), and supervise() calls reap() after each.
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGUSR1) signal_all(SIGUSR1);
    if (is_stop(number)) asked_to_stop(number);
  }
}

/// A second request ends the tasks and this process at once.
void LocalCluster::asked_to_stop(int signal_number) {
  const TimePoint now = Clock::now();
  if (asked_at_ == TimePoint::max() && signal_number == SIGINT) stop_signal_ = signal_number;
  asked_at_ = std::min(asked_at_, now);
  name_at_ = std::min(name_at_, now + kNameAfter);
  // The end of a terminal is no request to kill.
  if (now - asked_at_ < kOneRequest || signal_number == SIGHUP) return;
  say("gradrail: a second request to stop kills all tasks\n");
  signal_all(SIGKILL);
  terminal_.take_back();
  end_by(signal_number);
}

/// Only while workers train: a ps that fails at its start would fail again. A program may end with any code.
bool LocalCluster::may_restart(const TaskProcess& process) const {
  const bool is_lost =
      process.is_group ? process.exit_code != kGood : !process.is_worker && process.exit_code >= kRetry;
  const bool goes_on = process.is_group ? !is_stopping() && !servers_have_ended(processes_) : run_goes_on();
  return is_lost && goes_on && restarts_ < options_.max_restarts;
}

/// Each lost ps returns at its former address, where the workers search for it.
void LocalCluster::restart_tasks() {
  for (TaskProcess& process : processes_) {
    // Its last lines come first.
    if (!process.is_due_again || process.has_output()) continue;
    // The workers may have ended meanwhile, or a stop may have been requested.
    const bool goes_on = run_goes_on();
    process.is_due_again = false;
    if (!goes_on) continue;
    if (process.is_worker && servers_have_ended(processes_)) {
      program_failed(process);
      continue;
    }
    const int former_code = process.exit_code;
    process = process.is_worker ? spawn_worker(process.index, true) : spawn_ps(process.index, nullptr);
    process.former_code = former_code;
    if (!process.running) stop_at_ = std::min(stop_at_, Clock::now() + kFailureGracePeriod);
  }
}

/// A worker that is started again while the last servers end could not join any more. One that is suspended was removed
/// from the run, and nothing would continue it.
void LocalCluster::stop_late_workers() {
  if (!servers_have_ended(processes_)) return;
  for (TaskProcess& process : processes_) {
    if (!process.running || !process.is_group || process.is_late) continue;
    if (process.is_suspended)
      say("gradrail: {} (pid {}) is suspended, and all servers have ended: killed\n", process.name, process.pid);
    else if (!process.is_again || has_joined(process.index))
      continue;
    process.is_late = true;
    process.signal(SIGKILL);
  }
}

/// The servers wait without a limit for the first join of worker 0, which initializes the parameters. All modes but
/// async wait for the other workers, too, but for Mode::spared_count().
bool LocalCluster::is_awaited_in_vain(const TaskProcess& process) const {
  if (!options_.program.empty() || !process.is_worker || has_joined(process.index)) return false;
  if (is_stopping()) return false;
  if (process.is_chief) return true;
  const auto missing = std::count_if(processes_.begin(), processes_.end(), [this](const TaskProcess& other) {
    return other.is_worker && !other.running && !has_joined(other.index);
  });
  return options_.mode.waits() && missing > options_.mode.spared_count();
}

/// The first program that fails gives the run its exit code, and ends the run while it has servers. Without them each
/// other program has left, and ends by itself.
void LocalCluster::program_failed(TaskProcess& process) {
  const bool is_over = servers_have_ended(processes_);
  // The failure is that of the program before, which this one could not replace.
  if (is_over && process.is_again && !has_joined(process.index)) process.exit_code = process.former_code;
  // Once the run ends, its other programs end by a signal.
  if (asked_at_ != TimePoint::max() || (failed_code_ != kGood && is_stopping())) return;
  if (failed_code_ == kGood) failed_code_ = process.exit_code;
  say("gradrail: {} failed with exit code {}{}\n", process.name, process.exit_code,
      is_over ? ", after all servers have ended" : ": the run ends");
  if (!is_over) stop_at_ = std::min(stop_at_, Clock::now());
}

/// Ends the run if a program ended before it joined and others may wait for it. Returns whether others may join later.
bool LocalCluster::find_absent_program() {
  if (options_.program.empty() || is_stopping()) return false;
  TaskProcess* absent = nullptr;
  bool others_wait = false;
  for (TaskProcess& p : processes_) {
    others_wait = others_wait || (p.is_worker && p.running && has_joined(p.index));
    if (p.is_worker && !p.running && p.exit_code == kGood && !has_joined(p.index)) absent = &p;
  }
  if (absent == nullptr) return false;
  if (!others_wait) return true;
  say("gradrail: {} ended before it joined, and other workers wait for it\n", absent->name);
  absent->exit_code = kFailed;
  program_failed(*absent);
  return false;
}

void LocalCluster::ended(TaskProcess& process, int status) {
  process.running = false;
  process.output_until = Clock::now() + kOutputGracePeriod;
  if (process.is_group) kill(-process.pid, SIGKILL);  // children that it has left behind
  if (process.is_interactive) {
    terminal_.take_back();
    // Ctrl-C reaches this program alone, and means the run.
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT && !is_stopping()) asked_to_stop(SIGINT);
  }
  if (WIFEXITED(status)) {
    process.exit_code = WEXITSTATUS(status);
  } else {
    // Killed by a signal: nothing shows that the configuration is wrong. A program gets the code of shells.
    process.exit_code = process.is_group ? 128 + WTERMSIG(status) : static_cast<int>(kRetry);
    const std::optional<uint64_t> kills_before = std::exchange(kills_, out_of_memory_kills());
    const std::string how =
        killing_ ? "did not exit on request, and was killed" : describe_kill(status, kills_before, kills_);
    if (!process.is_late) say("gradrail: {} (pid {}) {}\n", process.name, process.pid, how);
  }
  if (may_restart(process)) {
    ++restarts_;
    process.is_due_again = true;
    say("gradrail: {} is started again ({} of {} restarts)\n", process.name, restarts_, options_.max_restarts);
    return;
  }
  if (process.is_group && process.exit_code != kGood) return program_failed(process);
  if (is_awaited_in_vain(process) && (process.exit_code == kGood || process.exit_code >= kRetry)) {
    say("gradrail: {} ended before it joined, and the run waits for it; a local cluster starts no worker again: "
        "the run ends, start it again\n",
        process.name);
    process.exit_code = kRetry;
    stop_at_ = Clock::now() + kFailureGracePeriod;
  }
  // A run continues without a lost worker. But wrong flags or data of one worker are an error of the whole run. If a ps
  // is lost, the tasks that have joined end without a signal. A task that still waits to join gets a signal.
  if (process.exit_code == kGood) return;
  if (!process.is_worker && process.exit_code >= kRetry && run_goes_on()) {
    say("gradrail: {} is not started again: {} of {} restarts are used (--restarts)\n", process.name, restarts_,
        options_.max_restarts);
  }
  // With a backup the run also survives the loss of a ps.
  const bool may_go = process.is_worker || options_.backup_ps > 0;
  const bool others_go_on = may_go && process.exit_code >= kRetry;
  if (!others_go_on) stop_at_ = std::min(stop_at_, Clock::now() + kFailureGracePeriod);
}

void LocalCluster::reap() {
  int status = 0;
  // A loop: the kernel merges several pending SIGCHLD into one.
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
    const auto process =
        std::find_if(processes_.begin(), processes_.end(), [&](const TaskProcess& p) { return p.pid == pid; });
    if (process == processes_.end()) continue;
    process->is_suspended = WIFSTOPPED(status);
    if (WIFSTOPPED(status)) stopped(*process, WSTOPSIG(status));
    if (WIFEXITED(status) || WIFSIGNALED(status)) ended(*process, status);
  }
}

/// The shell of a terminal knows this process alone. It therefore stops with the program that has the terminal, and
/// the shell's next `fg` or `bg` continues both.
void LocalCluster::stopped(TaskProcess& process, int signal_number) {
  const bool by_terminal = signal_number == SIGTSTP || signal_number == SIGTTIN || signal_number == SIGTTOU;
  if (!process.is_interactive || !by_terminal) return;
  if (signal_number == SIGTSTP || !terminal_.is_ours()) {
    terminal_.take_back();
    kill(0, SIGTSTP);  // the ps are in this group as well
  }
  terminal_.give(process.pid);
  process.signal(SIGCONT);
  process.is_suspended = false;
}

void LocalCluster::name_running() {
  std::vector<std::string> names;
  // The ps stay for the workers.
  const bool workers_remain = workers_run(processes_);
  for (const TaskProcess& process : processes_)
    if (process.running && process.is_worker == workers_remain)
      names.push_back(fmt::format("{} (pid {})", process.name, process.pid));
  if (names.empty()) return;
  const std::string limit =
      kill_at_ == TimePoint::max() ? "" : fmt::format(", at most {:.0f} s", -seconds_since(kill_at_));
  say("gradrail: the stop waits for {}{}; a second request kills all tasks\n", fmt::join(names, ", "), limit);
}

void LocalCluster::signal_all(int signal_number) {
  for (const TaskProcess& process : processes_) process.signal(signal_number);
}

/// A program gets SIGINT where this process has received it, else SIGTERM; it can handle both. A suspended task takes
/// no signal before it continues.
void LocalCluster::stop(const TaskProcess& process) const {
  process.signal(process.is_group ? stop_signal_ : kStopOfSupervisor);
  process.signal(SIGCONT);
}

void LocalCluster::stop_tasks(bool also_ps) const {
  for (const TaskProcess& process : processes_) {
    if (also_ps || process.is_worker) stop(process);
  }
}

void LocalCluster::supervise() {
  bool workers_signaled = false;
  bool all_signaled = false;
  // Not before the output is read to its end: the last lines of a task arrive after its exit.
  const auto busy = [](const TaskProcess& process) {
    return process.running || process.has_output() || process.is_due_again;
  };
  while (std::any_of(processes_.begin(), processes_.end(), busy)) {
    if (asked_at_ != TimePoint::max() && !workers_signaled) {
      workers_signaled = true;
      stop_tasks(false);  // the ps stay until the last of them has left
      // A worker finishes its step only if each ps answers.
      signal_all(SIGCONT);
      kill_at_ = std::min(kill_at_, Clock::now() + (is_interrupted() ? kInterruptGrace : Duration(kSaveGrace)));
    }
    // Without workers the ps have no reason to stay.
    if (!workers_run(processes_))
      stop_at_ = std::min(stop_at_, Clock::now() + (workers_signaled ? Duration::zero() : kOutputGracePeriod));
    if (Clock::now() >= stop_at_ && !all_signaled) {
      all_signaled = true;
      stop_tasks(true);
      kill_at_ = std::min(kill_at_, Clock::now() + (is_interrupted() ? kOutputGracePeriod : Duration(kGrace)));
    }
    if (Clock::now() >= name_at_) {
      name_at_ = TimePoint::max();
      name_running();
    }
    if (Clock::now() >= kill_at_) {
      killing_ = true;
      kill_at_ = TimePoint::max();
      // The ps end by themselves without the workers.
      for (const TaskProcess& process : processes_)
        if (all_signaled || process.is_worker) process.signal(SIGKILL);
    }
    const TimePoint look_at = find_absent_program() ? Clock::now() + kOutputGracePeriod : TimePoint::max();
    // Once all are signalled, `stop_at_` is in the past: with it the loop would not wait at all.
    pump(std::min(name_at_, all_signaled ? kill_at_ : std::min({stop_at_, kill_at_, look_at})));
    reap();
    restart_tasks();
    stop_late_workers();
  }
}

int LocalCluster::result() const {
  const bool has_backups = options_.backup_ps > 0;
  const int lost = killing_ ? kGood : lost_ps_code(processes_, has_backups ? options_.ps / 2 : options_.ps);
  // The programs fail as a consequence of a lost ps.
  if (lost != kGood && !options_.program.empty()) return lost;
  return failed_code_ != kGood ? failed_code_ : worst_code(processes_, has_backups && !killing_ && lost == kGood);
}

int LocalCluster::run() {
  if (options_.interactive) {
    if (const absl::Status terminal = terminal_.open(); !terminal.ok()) return report(terminal);
  }
  bool is_complete = start_ps();
  // A stop that came while the ps started leaves no reason to start workers.
  if (is_complete && asked_at_ == TimePoint::max()) is_complete = start_workers();
  if (!is_complete) stop_at_ = Clock::now();
  supervise();
  terminal_.take_back();
  printer_.end_lines();
  const bool nobody_joined = std::none_of(processes_.begin(), processes_.end(), [&](const TaskProcess& process) {
    return process.is_worker && has_joined(process.index);
  });
  if (!options_.program.empty() && nobody_joined && asked_at_ == TimePoint::max() && result() == kGood)
    say("gradrail: no worker has joined this run: the program has not used gradrail\n");
  return result();
}

}  // namespace

int run_local_cluster(TaskOptions options, const TaskBodies& bodies) {
  // hwloc would start GPU libraries to ask for names; forked tasks could not use them any more.
  constexpr const char* kComponents = "HWLOC_COMPONENTS";
  const bool chosen = std::getenv(kComponents) != nullptr;
  if (!chosen) setenv(kComponents, "-cuda,-nvml,-rsmi,-levelzero,-opencl,-gl", 1);
  absl::StatusOr<HostPlan> plan = plan_host(options);
  if (!chosen) unsetenv(kComponents);
  if (!plan.ok()) return report(plan.status());
  static_assert(std::atomic<bool>::is_always_lock_free);
  absl::StatusOr<SharedMemory> joined =
      SharedMemory::create("gradrail-joined", options.workers * sizeof(std::atomic<bool>));
  if (!joined.ok()) return report(joined.status());
  LocalCluster cluster(std::move(options), *std::move(plan), bodies, *std::move(joined));
  if (const absl::Status opened = cluster.open(); !opened.ok()) return report(opened);
  return cluster.run();
}

}  // namespace gradrail::launch
