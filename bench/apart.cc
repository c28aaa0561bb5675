#include "bench/apart.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <utility>

#include "fmt/format.h"

namespace gradrail::bench {
namespace {

[[noreturn]] void run_child(int fd, const std::function<nlohmann::json()>& body) {
  // A group of its own, so that whatever it starts can be ended with it; not left behind when we are killed.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string text = body().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count <= 0) _exit(1);
    written += static_cast<size_t>(count);
  }
  _exit(0);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return fmt::format("killed by signal {}", WTERMSIG(status));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

Apart::Apart(const std::function<nlohmann::json()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return;
  std::fflush(nullptr);  // else the child prints our buffers again
  process_ = fork();
  if (process_ == 0) {
    close(ends[0]);
    run_child(ends[1], body);
  }
  close(ends[1]);
  fd_ = ends[0];
}

Apart::Apart(Apart&& other) noexcept : process_(std::exchange(other.process_, -1)), fd_(std::exchange(other.fd_, -1)) {}

Apart::~Apart() {
  if (fd_ >= 0) close(fd_);
  if (process_ <= 0) return;
  kill(-process_, SIGKILL);
  kill(process_, SIGKILL);  // before it had its group
  waitpid(process_, nullptr, 0);
}

absl::StatusOr<nlohmann::json> Apart::result(TimePoint deadline) {
  if (process_ < 0) return absl::ResourceExhaustedError("no process could be started (ulimit -u)");
  std::string text;
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) return absl::DeadlineExceededError("took too long");
    const ssize_t count = read(fd_, buffer, sizeof(buffer));
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
  }
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_discarded()) return parsed;
  int status = 0;
  waitpid(process_, &status, 0);
  kill(-process_, SIGKILL);
  process_ = -1;
  return absl::InternalError(fmt::format("ended without a result ({})", how_it_ended(status)));
}

}  // namespace gradrail::bench
