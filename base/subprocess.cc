#include "base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/file_descriptor.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"

namespace gradrail {
namespace {

/// The pipe carries the status code, a line end, and the result or the message of the error.
[[noreturn]] void run_child(const std::function<absl::StatusOr<std::string>()>& work, pid_t parent, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent ended before the call of prctl()
  // UCX, libfabric and drivers print messages about the host; the caller reports the result instead.
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
  const absl::StatusOr<std::string> result = work();
  const std::string text = result.ok() ? *result : std::string(message_of(result.status()));
  const bool written = write_all(output, fmt::format("{}\n{}", static_cast<int>(result.status().code()), text));
  _exit(written ? 0 : 1);  // exit() would print the parent's buffers again and call exit handlers of drivers
}

/// nullopt: the status is unknown. A process that a driver holds in the kernel survives SIGKILL: the wait is bounded.
std::optional<int> reap(pid_t child) {
  // The tries take one second in total: the child has closed the pipe or was killed, so it is about to exit.
  constexpr int kTries = 200;
  constexpr useconds_t kInterval_us = 5000;
  for (int i = 0; i < kTries; ++i) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) return std::nullopt;  // the caller ignores SIGCHLD
    usleep(kInterval_us);
  }
  kill(child, SIGKILL);
  return std::nullopt;
}

absl::StatusOr<std::string> parse_result(const std::string& output) {
  int code = 0;
  const char* const end = output.data() + output.size();
  const auto [rest, error] = std::from_chars(output.data(), end, code);
  if (error != std::errc() || rest == end || *rest != '\n')
    return absl::UnavailableError("the child process ended without a result");
  std::string text(rest + 1, end);
  if (code == 0) return text;
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

}  // namespace

absl::StatusOr<std::string> run_in_subprocess(const std::function<absl::StatusOr<std::string>()>& work,
                                              const SubprocessLimits& limits) {
  GRADRAIL_ASSIGN_OR_RETURN(Pipe pipe, open_pipe());
  // The child inherits a copy of all buffers: text left in them could appear twice.
  std::fflush(nullptr);
  const TimePoint start = Clock::now();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return kernel_refusal("fork", errno);
  if (child == 0) {
    pipe.reader.reset();
    run_child(work, parent, pipe.writer.get());
  }
  // The reader gets no end of file when the child exits while this process holds the writer.
  pipe.writer.reset();
  // Codes of absl::Status have at most two digits; a line end follows.
  constexpr size_t kMaxCodeBytes = 4;
  absl::StatusOr<std::string> output =
      read_until_closed(pipe.reader.get(), start, start + limits.timeout, limits.max_output_bytes + kMaxCodeBytes);
  if (!output.ok()) kill(child, SIGKILL);
  const std::optional<int> status = reap(child);
  if (!output.ok()) return output;
  if (status && *status != 0)
    return absl::UnavailableError(fmt::format("{} ended the child process", describe_exit(*status)));
  return parse_result(*output);
}

absl::StatusOr<std::string> read_until_closed(int fd, TimePoint start, TimePoint deadline, size_t max_bytes) {
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    // Rounded up: rounded down, the wait would end up to a millisecond before the deadline.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX))) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return absl::ErrnoToStatus(errno, "poll");
    if (ready == 0) {
      const auto timeout = std::chrono::round<std::chrono::milliseconds>(deadline - start);
      return absl::DeadlineExceededError(
          fmt::format("no answer within {:g} s", std::chrono::duration<double>(timeout).count()));
    }
    const ssize_t count = read(fd, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(piece.data(), static_cast<size_t>(count));
    if (text.size() > max_bytes)
      return absl::ResourceExhaustedError(fmt::format("the output is longer than {} bytes", max_bytes));
  }
}

std::string describe_exit(int wait_status) {
  if (WIFEXITED(wait_status)) return fmt::format("exit code {}", WEXITSTATUS(wait_status));
  return fmt::format("signal {} ({})", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
}

}  // namespace gradrail
