#include "launch/supervise/task_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <sstream>
#include <utility>

#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/parse_number.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace gradrail::launch {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;  // as much as a pipe holds
/// A person sees no delay, and the parts of a line that a program writes one by one stay together.
constexpr Duration kPartDelay = std::chrono::milliseconds(100);
constexpr size_t kMostLastBytes = size_t{1} << 20;
constexpr size_t kTaskNameBytes = 15;  // the kernel keeps as many, and a zero

TaskProcess not_started(const ForkedTask& task, const absl::Status& why) {
  print_text(stderr, "gradrail: {} cannot be started: {}\n", task.name, message_of(why));
  TaskProcess failed;
  failed.name = task.name;
  failed.running = false;
  failed.exit_code = exit_code(why);
  return failed;
}

/// The bytes of `text` without a character of UTF-8 at its end that is not complete. All of it if nothing is before.
size_t whole_characters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // not the first byte of a character
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back && back < text.size() ? text.size() - back : text.size();
  }
  return text.size();
}

void set_input(const ForkedTask& task, pid_t parent) {
  if (task.is_interactive) {
    // Here as well as in the supervisor: the program may read at once.
    if (tcgetpgrp(STDIN_FILENO) == getpgid(parent)) tcsetpgrp(STDIN_FILENO, getpid());
    std::signal(SIGTTOU, SIG_DFL);
    return;
  }
  const int nothing = open("/dev/null", O_RDONLY);
  // Without /dev/null the task keeps the input of the supervisor.
  if (nothing < 0 && errno != ENOENT) _exit(not_started(task, kernel_refusal("open /dev/null", errno)).exit_code);
  if (nothing > STDIN_FILENO) {
    dup2(nothing, STDIN_FILENO);
    close(nothing);
  }
  if (!task.is_program) return;
  // A program can open /dev/tty. Its group is in the background, and the kernel would stop it for ever.
  std::signal(SIGTTIN, SIG_IGN);
  std::signal(SIGTTOU, SIG_IGN);
}

/// The child keeps its pipes, and closes what else the supervisor has opened.
void become_task(const ForkedTask& task, const std::vector<TaskProcess>& siblings, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent can end between fork() and prctl(): then no signal would arrive any more.
  if (getppid() != parent) _exit(kFailed);
  if (task.is_program) setpgid(0, 0);
  set_input(task, parent);
  // With these copies open, a sibling could write on after the end of its reader, without an error.
  for (const TaskProcess& other : siblings) {
    other.output.close_copy();
    other.errors.close_copy();
  }
  close(task.signals);
  // The supervisor alone reads SIGCHLD from a signalfd; a task needs the usual behavior.
  const sigset_t children = signal_set({SIGCHLD});
  sigprocmask(SIG_UNBLOCK, &children, nullptr);
  prctl(PR_SET_NAME, task.name.substr(0, kTaskNameBytes).c_str());
}

}  // namespace

void OutputStream::take(const PrintPart& print) {
  char buffer[kPieceBytes];
  const ssize_t count = read(fd_, buffer, sizeof(buffer));
  if (count <= 0) return close_at_end(print);
  std::string_view rest(buffer, static_cast<size_t>(count));
  for (size_t end = 0; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
    partial_line_.append(rest.substr(0, end));
    print(std::exchange(partial_line_, ""), true);
    is_begun_ = false;
    due_ = TimePoint::max();
  }
  if (rest.empty()) return;
  if (partial_line_.empty() && parts_ == Parts::kPrompt) due_ = Clock::now() + kPartDelay;
  partial_line_.append(rest);
  if (partial_line_.size() >= kPieceBytes) print_part(print);
}

void OutputStream::print_due(const PrintPart& print) {
  if (Clock::now() >= due_) print_part(print);
}

void OutputStream::print_part(const PrintPart& print) {
  const size_t bytes = whole_characters(partial_line_);
  // Tasks whose lines are read by a program have no line that is as long.
  const bool ends_line = parts_ == Parts::kLines;
  print(std::string_view(partial_line_).substr(0, bytes), ends_line);
  partial_line_.erase(0, bytes);
  is_begun_ = !ends_line;
  due_ = partial_line_.empty() || ends_line ? TimePoint::max() : Clock::now() + kPartDelay;
}

bool OutputStream::end(const PrintPart& print) {
  // Not without a limit: a process may write on for ever.
  for (size_t read_bytes = 0; fd_ >= 0 && read_bytes < kMostLastBytes; read_bytes += kPieceBytes) {
    pollfd readable = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, 0) <= 0) break;
    take(print);
  }
  if (fd_ < 0) return false;
  close_at_end(print);
  return true;
}

void OutputStream::close_at_end(const PrintPart& print) {
  // The last line of a program may have no end.
  if (!partial_line_.empty() || is_begun_) print(std::exchange(partial_line_, ""), true);
  is_begun_ = false;
  due_ = TimePoint::max();
  close(fd_);
  fd_ = -1;
}

void OutputStream::close_copy() const {
  if (fd_ >= 0) close(fd_);
}

bool TaskProcess::end_output(const PrintPart& print_output, const PrintPart& print_error) {
  const bool output_open = output.end(print_output);
  const bool errors_open = errors.end(print_error);
  return output_open || errors_open;
}

void TaskProcess::signal(int number) const {
  // A process that was reaped has no number any more; the kernel may have given it to another one.
  if (running) kill(is_group ? -pid : pid, number);
}

TaskProcess fork_task(const ForkedTask& task, const std::vector<TaskProcess>& siblings) {
  absl::StatusOr<Pipe> output = open_pipe();
  if (!output.ok()) return not_started(task, output.status());
  absl::StatusOr<Pipe> errors = open_pipe();
  if (!errors.ok()) return not_started(task, errors.status());
  std::fflush(nullptr);  // else the child prints our buffers again
  const pid_t parent = getpid();
  // The child keeps our mask: a signal stays pending until its SignalThread takes it.
  const pid_t pid = fork();
  if (pid == 0) {
    become_task(task, siblings, parent);
    if (dup2(output->writer.get(), STDOUT_FILENO) < 0 ||
        (task.is_program && dup2(errors->writer.get(), STDERR_FILENO) < 0)) {
      _exit(not_started(task, kernel_refusal("dup2", errno)).exit_code);
    }
    *output = {};
    *errors = {};
    const int code = task.body();
    std::fflush(nullptr);
    _exit(code);  // no destructors of the parent's objects
  }
  if (pid < 0) return not_started(task, kernel_refusal("fork", errno));
  if (task.is_program) setpgid(pid, pid);  // the first of the two processes sets it
  print_text("# {}: pid {}\n", task.name, pid);
  std::fflush(stdout);  // the reader of a pipe needs it now
  // The supervisor reads the lines of its own tasks; a program may write a prompt.
  const auto parts = task.is_program ? OutputStream::Parts::kPrompt : OutputStream::Parts::kLines;
  return {.name = task.name,
          .is_group = task.is_program,
          .is_interactive = task.is_interactive,
          .pid = pid,
          .output = OutputStream(output->reader.release(), parts),
          .errors = OutputStream(task.is_program ? errors->reader.release() : -1, parts)};
}

std::optional<uint64_t> out_of_memory_kills(const SystemFiles& files) {
  std::istringstream lines(files("/proc/vmstat"));
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kName = "oom_kill ";
    if (line.starts_with(kName)) return parse_number<uint64_t>(std::string_view(line).substr(kName.size()));
  }
  return std::nullopt;
}

std::string describe_kill(int wait_status, std::optional<uint64_t> kills_before, std::optional<uint64_t> kills_now) {
  const std::string by = "was killed by " + describe_exit(wait_status);
  if (WTERMSIG(wait_status) != SIGKILL) return by;
  if (!kills_before || !kills_now)
    return by + "; usual cause: too little memory, and the out-of-memory killer of the kernel (see `dmesg`)";
  if (*kills_before == *kills_now) return by + "; the kernel has counted no end for lack of memory";
  return by +
         "; the out-of-memory killer of the kernel was at work: give this host or its cgroup more memory, or the "
         "run fewer tasks";
}

bool workers_run(const std::vector<TaskProcess>& processes) {
  return std::any_of(processes.begin(), processes.end(),
                     [](const TaskProcess& p) { return p.is_worker && (p.running || p.is_due_again); });
}

bool servers_have_ended(const std::vector<TaskProcess>& processes) {
  const auto serves = [](const TaskProcess& p) { return !p.is_worker && (p.running || p.is_due_again); };
  // One of a pair can have been lost before.
  const auto is_complete = [](const TaskProcess& p) { return !p.is_worker && p.exit_code == kGood; };
  return std::none_of(processes.begin(), processes.end(), serves) &&
         std::any_of(processes.begin(), processes.end(), is_complete);
}

int lost_ps_code(const std::vector<TaskProcess>& processes, uint32_t primaries) {
  const auto is_lost = [](const TaskProcess& p) { return !p.running && p.exit_code >= kRetry; };
  for (const TaskProcess& process : processes) {
    const bool others_serve = std::any_of(processes.begin(), processes.end(), [&](const TaskProcess& other) {
      return !other.is_worker && other.index % primaries == process.index % primaries && !is_lost(other);
    });
    if (!process.is_worker && is_lost(process) && !others_serve) return process.exit_code;
  }
  return kGood;
}

int worst_code(const std::vector<TaskProcess>& processes, bool backups_served) {
  int worst = kGood;
  for (const TaskProcess& process : processes) {
    if (backups_served && !process.is_worker && process.exit_code >= kRetry) continue;
    const auto rank = [](int code) { return code == kGood ? 0 : code >= 128 ? 1 : 2; };
    if (rank(process.exit_code) > rank(worst)) worst = process.exit_code;
  }
  return worst;
}

}  // namespace gradrail::launch
