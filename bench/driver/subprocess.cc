#include "bench/driver/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/resource_limits.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "bench/driver/children.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::bench {
namespace {

constexpr size_t kMaxResultBytes = size_t{64} << 20;  // figures and latencies take a few MB at most

}  // namespace

std::string text_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void run_child(int output, const std::function<nlohmann::json()>& body) {
  // _exit(): the child has copies of the parent's buffers and exit handlers.
  if (!write_all(output, text_of(body()))) _exit(1);
  end_children();
  _exit(0);
}

Subprocess::Subprocess(const std::function<nlohmann::json()>& body) {
  absl::StatusOr<Pipe> pipe = open_pipe();
  if (!pipe.ok()) {
    why_none_ = pipe.status();
    return;
  }
  std::fflush(nullptr);  // otherwise the child prints our buffers again
  process_ = fork_child();
  if (process_ < 0) why_none_ = kernel_refusal("fork", errno);
  if (process_ == 0) {
    // Each side closes the other's end: otherwise the exit of the child causes no end of file.
    pipe->reader.reset();
    run_child(pipe->writer.get(), body);
  }
  output_ = std::move(pipe->reader);
}

Subprocess Subprocess::start(const nlohmann::json& job) {
  Subprocess child;
  absl::StatusOr<Pipe> pipe = open_pipe();
  // A file, not a pipe: the parent does not wait until the child reads it.
  const FileDescriptor input(memfd_create("job", MFD_CLOEXEC));
  if (!pipe.ok() || !input || !write_all(input.get(), text_of(job)) || lseek(input.get(), 0, SEEK_SET) != 0) {
    child.why_none_ = pipe.ok() ? kernel_refusal("a file in memory for a job", errno) : pipe.status();
    return child;
  }
  const std::string output = std::to_string(pipe->writer.get());
  const char* const arguments[] = {"gradrail", "bench", "job", output.c_str(), nullptr};
  child.process_ = fork_child();
  if (child.process_ < 0) child.why_none_ = kernel_refusal("fork", errno);
  if (child.process_ == 0) {  // other threads may hold locks: only functions that are safe in signal handlers are used
    dup2(input.get(), STDIN_FILENO);
    fcntl(pipe->writer.get(), F_SETFD, 0);  // stays open
    execv("/proc/self/exe", const_cast<char* const*>(arguments));
    _exit(1);
  }
  child.output_ = std::move(pipe->reader);
  return child;
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      why_none_(std::move(other.why_none_)),
      start_(other.start_),
      output_(std::move(other.output_)) {}

Subprocess::~Subprocess() {
  output_.reset();  // a child that writes a result ends
  if (process_ > 0) end_child(process_);
}

bool Subprocess::is_done(Duration timeout) const {
  pollfd wait{.fd = output_.get(), .events = POLLIN, .revents = 0};
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  // An end of file counts as done, too: result() then reports how the child ended.
  return process_ < 0 || poll(&wait, 1, static_cast<int>(millis)) > 0;
}

absl::StatusOr<nlohmann::json> Subprocess::result(TimePoint deadline) {
  if (process_ < 0) return why_none_.ok() ? absl::FailedPreconditionError("it has ended") : why_none_;
  GRADRAIL_ASSIGN_OR_RETURN(const std::string text,
                            read_until_closed(output_.get(), start_, deadline, kMaxResultBytes));
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_discarded()) return parsed;
  // No valid result: the exit status has the reason, such as a signal.
  const int status = wait_child(std::exchange(process_, -1));
  return absl::InternalError(fmt::format("ended without a result ({})", describe_exit(status)));
}

}  // namespace gradrail::bench
