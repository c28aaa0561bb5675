#include "tools/local_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/exit_codes.h"
#include "tools/task.h"
#include "tools/worker_bars.h"

namespace gradrail::tools {
namespace {

/// After a task has failed the others notice within this (a lost ps: 5 s); then they are killed.
constexpr auto kGrace = std::chrono::seconds(8);
/// The ps end by themselves when the last worker has left; those that still expect one are told to after this.
constexpr Duration kLastWords = std::chrono::seconds(1);
/// For the others to find out by themselves that a task has failed, and to say so.
constexpr Duration kFailedWords = std::chrono::seconds(3);
constexpr auto kStartDeadline = std::chrono::seconds(30);

struct Process {
  std::string name;
  bool is_chief = false;
  bool is_worker = false;
  uint32_t index = 0;
  pid_t pid = -1;
  int output = -1;  ///< its stdout
  std::string partial_line;
  bool running = true;
  int exit_code = kGood;
};

volatile std::sig_atomic_t asked_to_stop = 0;

void on_stop_signal(int) { asked_to_stop = 1; }

volatile std::sig_atomic_t asked_to_dump = 0;

void on_dump_signal(int) { asked_to_dump = 1; }

int report(const std::string& name, const absl::Status& status) {
  if (status.ok()) return kGood;
  fmt::print(stderr, "gradrail: {}: {}\n", name, message_of(status));
  return exit_code(status);
}

class LocalCluster {
 public:
  LocalCluster(TrainOptions options, HostPlan plan) : options_(std::move(options)), plan_(std::move(plan)) {}
  int run();

 private:
  template <typename F>
  Process spawn(const std::string& name, F body);
  bool start_ps();
  void start_workers();
  void supervise();
  void pump(int timeout_ms);
  void take_output(Process& process);
  void print(const Process& process, const std::string& line);
  void reap();
  void ended(Process& process, int status);
  void signal_all(int signal_number);
  void signal_workers(int signal_number);
  int result() const;

  TrainOptions options_;
  const HostPlan plan_;
  std::vector<Process> processes_;
  bool failing_ = false;
  bool killing_ = false;
  TimePoint stop_at_ = TimePoint::max();
  TimePoint kill_at_ = TimePoint::max();
  WorkerBars bars_{isatty(STDOUT_FILENO) != 0};
};

/// Forks a task with its stdout in a pipe. The child ends with the body's result and dies with us.
template <typename F>
Process LocalCluster::spawn(const std::string& name, F body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    fmt::print(stderr, "gradrail: pipe: {}\n", std::strerror(errno));
    return {.name = name, .running = false, .exit_code = kFailed};
  }
  std::fflush(nullptr);  // else the child prints our buffers again
  const pid_t parent = getpid();
  // Until the child has a handler of its own a SIGTERM waits: ours, which it inherits, would swallow it.
  sigset_t stop_signal, before;
  sigemptyset(&stop_signal);
  sigaddset(&stop_signal, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop_signal, &before);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kFailed);
    for (const Process& other : processes_) close(other.output);
    std::signal(SIGINT, SIG_IGN);  // the supervisor passes a Ctrl-C on as SIGTERM
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    prctl(PR_SET_NAME, name.substr(0, 15).c_str());
    const int code = body();
    std::fflush(nullptr);
    _exit(code);  // no destructors of the parent's objects
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  close(ends[1]);
  if (pid < 0) {
    fmt::print(stderr, "gradrail: fork: {}\n", std::strerror(errno));
    close(ends[0]);
    return {.name = name, .running = false, .exit_code = kFailed};
  }
  fmt::print("# {}: pid {}\n", name, pid);
  std::fflush(stdout);  // whoever reads a pipe wants it now
  return {.name = name, .pid = pid, .output = ends[0]};
}

bool LocalCluster::start_ps() {
  for (uint32_t i = 0; i < options_.flags.workers; ++i)
    options_.cluster.workers.push_back(fmt::format("localhost/{}", i));
  for (uint32_t i = 0; i < options_.flags.ps; ++i) options_.cluster.ps.push_back("127.0.0.1:0");
  for (uint32_t n = 0; n < options_.flags.ps; ++n) {
    // Standbys first: a task is told the address of its own.
    const uint32_t i = options_.flags.replicas > 0 ? options_.flags.ps - 1 - n : n;
    int ports[2];
    if (pipe2(ports, O_CLOEXEC) != 0) return false;
    TrainOptions options = options_;
    options.task = {"ps", i};
    options.flags.bind.clear();
    Process process = spawn(fmt::format("ps/{}", i), [&] {
      close(ports[0]);
      return report(fmt::format("ps/{}", i), run_ps(options, plan_, [&](uint16_t port) {
                      if (write(ports[1], &port, sizeof(port)) != sizeof(port)) _exit(kFailed);
                      close(ports[1]);
                    }));
    });
    process.index = i;
    close(ports[1]);
    uint16_t port = 0;
    pollfd wait{.fd = ports[0], .events = POLLIN, .revents = 0};
    const TimePoint deadline = Clock::now() + kStartDeadline;
    int ready = -1;
    do {  // a signal that asks us to stop ends the wait, not the cluster: supervise() sees to it once the ps is up
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      ready = poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left)));
    } while (ready < 0 && errno == EINTR);
    const bool came_up = ready == 1 && read(ports[0], &port, sizeof(port)) == sizeof(port);
    close(ports[0]);
    processes_.push_back(std::move(process));
    if (!came_up) return false;
    options_.cluster.ps[i] = fmt::format("127.0.0.1:{}", port);
  }
  return true;
}

void LocalCluster::start_workers() {
  for (uint32_t i = 0; i < options_.flags.workers; ++i) {
    TrainOptions options = options_;
    options.task = {"worker", i};
    Process process = spawn(fmt::format("worker/{}", i),
                            [&] { return report(fmt::format("worker/{}", i), run_worker(options, plan_)); });
    process.is_chief = i == 0;
    process.is_worker = true;
    process.index = i;
    processes_.push_back(std::move(process));
  }
}

void LocalCluster::print(const Process& process, const std::string& line) {
  const bool is_step = process.is_worker && bars_.take(process.index, line);
  if (is_step && !process.is_chief) return;
  bars_.print_above(process.is_chief ? line : fmt::format("[{}] {}", process.name, line));
}

void LocalCluster::take_output(Process& process) {
  char buffer[4096];
  const ssize_t count = read(process.output, buffer, sizeof(buffer));
  if (count <= 0) {
    close(process.output);
    process.output = -1;
    return;
  }
  process.partial_line.append(buffer, static_cast<size_t>(count));
  for (size_t end = 0; (end = process.partial_line.find('\n')) != std::string::npos;) {
    print(process, process.partial_line.substr(0, end));
    process.partial_line.erase(0, end + 1);
  }
}

void LocalCluster::pump(int timeout_ms) {
  std::vector<pollfd> fds;
  std::vector<Process*> owners;
  for (Process& process : processes_) {
    if (process.output < 0) continue;
    fds.push_back({.fd = process.output, .events = POLLIN, .revents = 0});
    owners.push_back(&process);
  }
  if (poll(fds.data(), fds.size(), timeout_ms) <= 0) return;
  for (size_t i = 0; i < fds.size(); ++i) {
    if (fds[i].revents != 0) take_output(*owners[i]);
  }
}

void LocalCluster::ended(Process& process, int status) {
  process.running = false;
  if (WIFEXITED(status)) {
    process.exit_code = WEXITSTATUS(status);
  } else {
    process.exit_code = kRetry;
    const std::string how =
        killing_ ? "did not end when it was asked to, and was killed"
                 : fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    fmt::print(stderr, "gradrail: {} (pid {}) {}\n", process.name, process.pid, how);
  }
  // A run goes on without a worker that was lost; what is wrong with one worker's flags or data is wrong with the whole
  // run. Without a ps the others end by themselves, if they have got as far as that: who still waits to join is told.
  if (process.exit_code != kGood && !failing_) {
    failing_ = true;
    const bool may_go = process.is_worker || options_.flags.replicas > 0;
    const bool others_go_on = may_go && process.exit_code >= kRetry;
    if (!others_go_on) stop_at_ = std::min(stop_at_, Clock::now() + kFailedWords);
  }
}

void LocalCluster::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto process =
        std::find_if(processes_.begin(), processes_.end(), [&](const Process& p) { return p.pid == pid; });
    if (process != processes_.end()) ended(*process, status);
  }
}

void LocalCluster::signal_all(int signal_number) {
  for (const Process& process : processes_) {
    if (process.running) kill(process.pid, signal_number);
  }
}

void LocalCluster::signal_workers(int signal_number) {
  for (const Process& process : processes_) {
    if (process.running && process.is_worker) kill(process.pid, signal_number);
  }
}

void LocalCluster::supervise() {
  bool workers_told = false;
  bool all_told = false;
  const auto busy = [](const Process& process) { return process.running || process.output >= 0; };
  while (std::any_of(processes_.begin(), processes_.end(), busy)) {
    pump(50);
    reap();
    if (asked_to_dump != 0) {
      asked_to_dump = 0;
      signal_all(SIGUSR1);
    }
    if (asked_to_stop != 0 && !workers_told) {
      workers_told = true;
      signal_workers(SIGTERM);  // the ps stay until the last of them has said goodbye
      kill_at_ = std::min(kill_at_, Clock::now() + kGrace);
    }
    const bool workers_run =
        std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.running && p.is_worker; });
    // Without workers the ps have no reason to stay.
    if (!workers_run) stop_at_ = std::min(stop_at_, Clock::now() + (workers_told ? Duration::zero() : kLastWords));
    if (Clock::now() >= stop_at_ && !all_told) {
      all_told = true;
      signal_all(SIGTERM);
      kill_at_ = std::min(kill_at_, Clock::now() + kGrace);
    }
    if (Clock::now() < kill_at_) continue;
    killing_ = true;
    signal_all(SIGKILL);
  }
}

int LocalCluster::result() const {
  // What made the run fail outranks what followed from it: configuration before retry.
  int worst = kGood;
  for (const Process& process : processes_) {
    const auto rank = [](int code) { return code == kGood ? 0 : code >= 128 ? 1 : 2; };
    if (rank(process.exit_code) > rank(worst)) worst = process.exit_code;
  }
  return worst;
}

int LocalCluster::run() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction dump {};
  dump.sa_handler = on_dump_signal;
  dump.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &dump, nullptr);
  const bool have_ps = start_ps();
  if (have_ps && asked_to_stop == 0) start_workers();
  if (!have_ps) {
    signal_all(SIGTERM);
    kill_at_ = Clock::now() + kGrace;
  }
  supervise();
  bars_.clear();
  return result();
}

}  // namespace

int run_local_cluster(TrainOptions options) {
  // hwloc would start GPU libraries to ask for names; forked tasks could not use them any more.
  constexpr const char* kComponents = "HWLOC_COMPONENTS";
  const bool chosen = std::getenv(kComponents) != nullptr;
  if (!chosen) setenv(kComponents, "-cuda,-nvml,-rsmi,-levelzero,-opencl,-gl", 1);
  absl::StatusOr<HostPlan> plan = plan_host(options);
  if (!chosen) unsetenv(kComponents);
  if (!plan.ok()) {
    fmt::print(stderr, "gradrail: {}\n", message_of(plan.status()));
    return exit_code(plan.status());
  }
  return LocalCluster(std::move(options), *std::move(plan)).run();
}

}  // namespace gradrail::tools
