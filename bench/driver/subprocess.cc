#include "bench/driver/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "bench/driver/children.h"
#include "fmt/format.h"

namespace gradrail::bench {
namespace {

[[noreturn]] void run_child(int fd, const std::function<nlohmann::json()>& body) {
  const std::string text = body().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count <= 0) _exit(1);
    written += static_cast<size_t>(count);
  }
  end_children();
  _exit(0);
}

}  // namespace

Subprocess::Subprocess(const std::function<nlohmann::json()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  std::fflush(nullptr);  // else the child prints our buffers again
  process_ = fork_child();
  if (process_ == 0) {
    close(ends[0]);
    run_child(ends[1], body);
  }
  close(ends[1]);
  fd_ = ends[0];
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : process_(std::exchange(other.process_, -1)), fd_(std::exchange(other.fd_, -1)) {}

Subprocess::~Subprocess() {
  if (fd_ >= 0) close(fd_);
  if (process_ > 0) end_child(process_);
}

bool Subprocess::is_done(Duration timeout) const {
  pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return process_ < 0 || poll(&wait, 1, static_cast<int>(millis)) > 0;
}

absl::StatusOr<nlohmann::json> Subprocess::result(TimePoint deadline) {
  if (process_ < 0) return absl::ResourceExhaustedError("no process could be started (ulimit -u)");
  std::string text;
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    const int ready = left <= 0 ? 0 : poll(&wait, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;  // stopped and continued
    if (ready <= 0) return absl::DeadlineExceededError("took too long");
    const ssize_t count = read(fd_, buffer, sizeof(buffer));
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
  }
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_discarded()) return parsed;
  const int status = wait_child(std::exchange(process_, -1));
  return absl::InternalError(fmt::format("ended without a result ({})", how_it_ended(status)));
}

}  // namespace gradrail::bench
