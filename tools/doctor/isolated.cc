#include "tools/doctor/isolated.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::tools::doctor {
namespace {

/// No answer is longer; what babbles is cut.
constexpr size_t kMostBytes = 256 << 10;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t bytes = write(fd, text.data(), text.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return;
    text.remove_prefix(static_cast<size_t>(bytes));
  }
}

/// Status code, a line end, text: what the pipe carries.
[[noreturn]] void work_in_child(const std::function<absl::StatusOr<std::string>()>& work, int answer) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // UCX and libfabric print messages about the host; the caller gets them from us.
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);
  dup2(nowhere, STDERR_FILENO);
  const absl::StatusOr<std::string> found = work();
  const std::string text = found.ok() ? *found : std::string(message_of(found.status()));
  write_all(answer, fmt::format("{}\n{}", static_cast<int>(found.status().code()), text));
  _exit(0);  // not exit(): neither our buffers a second time, nor the libraries' last words
}

/// The bytes until the other end was closed; false at the deadline.
bool hear(int fd, TimePoint deadline, std::string& heard) {
  std::array<char, 4096> piece;
  while (heard.size() < kMostBytes) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t bytes = read(fd, piece.data(), piece.size());
    if (bytes <= 0) return true;
    heard.append(piece.data(), static_cast<size_t>(bytes));
  }
  return true;
}

/// A process that a driver holds in the kernel survives SIGKILL for as long as the driver likes; it is not waited for.
int end_of(pid_t child) {
  constexpr int kTries = 200;
  for (int i = 0; i < kTries; ++i) {
    int end = 0;
    if (waitpid(child, &end, WNOHANG) != 0) return end;
    usleep(5000);
  }
  return 0;
}

absl::StatusOr<std::string> parse(const std::string& heard, int end) {
  const size_t line = heard.find('\n');
  if (line == std::string::npos) {
    if (WIFSIGNALED(end)) {
      return absl::UnavailableError(
          fmt::format("signal {} ({}) ended the process that tried it", WTERMSIG(end), strsignal(WTERMSIG(end))));
    }
    return absl::UnavailableError(fmt::format("the process that tried it ended with code {}", WEXITSTATUS(end)));
  }
  const int code = std::atoi(heard.c_str());
  std::string text = heard.substr(line + 1);
  if (code == 0) return text;
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

}  // namespace

absl::StatusOr<std::string> run_isolated(const std::function<absl::StatusOr<std::string>()>& work, Duration timeout) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return absl::ResourceExhaustedError(std::strerror(errno));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    return absl::ResourceExhaustedError(fmt::format("fork: {}", std::strerror(errno)));
  }
  if (child == 0) work_in_child(work, ends[1]);
  close(ends[1]);
  std::string heard;
  const bool answered = hear(ends[0], Clock::now() + timeout, heard);
  close(ends[0]);
  if (!answered) kill(child, SIGKILL);
  const int end = end_of(child);
  if (!answered) {
    return absl::DeadlineExceededError(
        fmt::format("no answer within {} s", std::chrono::duration_cast<std::chrono::seconds>(timeout).count()));
  }
  return parse(heard, end);
}

}  // namespace gradrail::tools::doctor
