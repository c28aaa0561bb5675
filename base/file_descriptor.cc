#include "base/file_descriptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>

#include "base/read_file.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/clock.h"

namespace gradrail {

void FileDescriptor::reset(int fd) {
  const int error = errno;  // callers report the errno of a call before the destructor
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  errno = error;
}

absl::Status allow_open_files(uint64_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return absl::OkStatus();
  if (limit.rlim_max < count) {
    return absl::ResourceExhaustedError(
        fmt::format("{} open files are needed, and the hard limit is {}: raise it (`ulimit -Hn`, LimitNOFILE= of a "
                    "systemd unit, --ulimit nofile= of a container)",
                    count, limit.rlim_max));
  }
  limit.rlim_cur = count;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::ErrnoToStatus(errno, "setrlimit(RLIMIT_NOFILE)");
  return absl::OkStatus();
}

void allow_many_open_files() {
  // Some hosts have a hard limit of 10^9. No server has so many connections.
  constexpr rlim_t kMany = rlim_t{1} << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  allow_open_files(std::min(limit.rlim_max, kMany)).IgnoreError();  // the hard limit permits it
}

absl::StatusOr<Pipe> open_pipe() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return kernel_refusal("pipe", errno);
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

std::optional<std::string> read_up_to(int fd, size_t max_bytes) {
  std::string text;
  std::array<char, 16384> piece;
  while (text.size() < max_bytes) {
    const ssize_t count = read(fd, piece.data(), std::min(piece.size(), max_bytes - text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) break;
    text.append(piece.data(), static_cast<size_t>(count));
  }
  return text;
}

namespace {

constexpr std::string_view name_of_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe (FIFO)";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISREG(mode) ? "a regular file" : "a device";
}

absl::Status not_regular(const std::string& path, mode_t mode) {
  return absl::InvalidArgumentError(fmt::format("{}: is {}, not a regular file", path, name_of_kind(mode)));
}

/// The error of a system call about `path`.
absl::Status file_error(const std::string& path, int error, std::string_view what = "cannot be read") {
  struct stat own {};
  std::error_code ignored;
  const bool is_link = lstat(path.c_str(), &own) == 0 && S_ISLNK(own.st_mode);
  if (!is_link) return absl::ErrnoToStatus(error, fmt::format("{}: {}", path, what));
  const std::string target = std::filesystem::read_symlink(path, ignored).string();
  const std::string text = fmt::format("{}: {}: is a symbolic link to {}", path, what, target);
  if (error != ENOENT) return absl::ErrnoToStatus(error, text);
  return absl::FailedPreconditionError(text + ", which is not there (is its storage mounted?)");
}

// Many callers read files, and none of them has an object of the process.
std::atomic<bool> ends_pipe_waits = false;

/// Signals are blocked while a program reads its files. A thread may take them already.
bool is_asked_to_end(int16_t events) {
  if (events == POLLIN && ends_pipe_waits) return true;  // the results of a run are written after the request
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1 ||
         sigismember(&pending, SIGHUP) == 1;
}

/// Waits for an event of a pipe. `hung_up`: its other end is closed.
absl::Status await(int fd, int16_t events, const std::string& path, TimePoint deadline, bool& hung_up) {
  constexpr Duration kLook = std::chrono::milliseconds(100);
  while (true) {
    const Duration left = deadline - Clock::now();
    if (left <= Duration::zero())
      return absl::DeadlineExceededError(fmt::format("{}: the process at its other end does not answer in time", path));
    if (is_asked_to_end(events))
      return absl::CancelledError(fmt::format("{}: stopped while waiting for its data", path));
    pollfd waits{.fd = fd, .events = events, .revents = 0};
    const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(std::min(left, kLook)).count();
    if (poll(&waits, 1, static_cast<int>(wait_ms)) <= 0) continue;
    hung_up = (waits.revents & (POLLHUP | POLLERR)) != 0;
    return absl::OkStatus();
  }
}

}  // namespace

absl::Status check_regular_file(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return file_error(path, errno);
  return S_ISREG(facts.st_mode) ? absl::OkStatus() : not_regular(path, facts.st_mode);
}

absl::StatusOr<FileDescriptor> open_regular_file(const std::string& path, int flags, mode_t mode) {
  // Two checks: to open some devices does something, and the path may name another file by the time of open().
  if (const absl::Status kind = check_regular_file(path); !kind.ok() && !absl::IsNotFound(kind)) return kind;
  // O_NOCTTY: a path that names a terminal must not make it the controlling terminal of this process.
  FileDescriptor file(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode));
  struct stat facts {};
  if (!file || fstat(file.get(), &facts) != 0)
    return file_error(path, errno, (flags & O_ACCMODE) == O_RDONLY ? "cannot be read" : "cannot be opened");
  if (!S_ISREG(facts.st_mode)) return not_regular(path, facts.st_mode);
  return file;
}

absl::StatusOr<FileDescriptor> open_input(const std::string& path, FileKind kind) {
  if (kind == FileKind::regular) return open_regular_file(path, O_RDONLY);
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat facts {};
  if (!file || fstat(file.get(), &facts) != 0) return file_error(path, errno);
  if (S_ISDIR(facts.st_mode)) return not_regular(path, facts.st_mode);
  return file;
}

absl::StatusOr<std::string> read_input(const FileDescriptor& file, const std::string& path, size_t max_bytes,
                                       Duration timeout) {
  struct stat facts {};
  const bool is_pipe = fstat(file.get(), &facts) == 0 && S_ISFIFO(facts.st_mode);
  const TimePoint deadline = Clock::now() + timeout;
  std::string text;
  std::array<char, 16384> piece;
  bool hung_up = false;
  while (text.size() < max_bytes) {
    const ssize_t count = read(file.get(), piece.data(), std::min(piece.size(), max_bytes - text.size()));
    if (count > 0) {
      text.append(piece.data(), static_cast<size_t>(count));
    } else if (count < 0 && errno != EINTR && errno != EAGAIN) {
      return file_error(path, errno);
    } else if (count == 0 && (!is_pipe || !text.empty() || hung_up)) {
      break;
    } else if (count == 0 || errno == EAGAIN) {
      // A pipe at its end has no writer, or none yet: only poll() distinguishes them.
      GRADRAIL_RETURN_IF_ERROR(await(file.get(), POLLIN, path, deadline, hung_up));
    }
  }
  return text;
}

void end_pipe_waits() { ends_pipe_waits = true; }

absl::StatusOr<std::string> read_file(const std::string& path, size_t max_bytes, FileKind kind) {
  GRADRAIL_ASSIGN_OR_RETURN(const FileDescriptor file, open_input(path, kind));
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return file_error(path, errno);
  // The size of files in /proc and /sys is 0, and a file can grow: the read below has its own limit.
  const auto too_long = absl::InvalidArgumentError(fmt::format("{}: is longer than {} bytes", path, max_bytes));
  if (static_cast<size_t>(facts.st_size) > max_bytes) return too_long;
  // One byte beyond the limit separates a file of exactly `max_bytes` from a longer one.
  GRADRAIL_ASSIGN_OR_RETURN(std::string text, read_input(file, path, max_bytes + 1));
  if (text.size() > max_bytes) return too_long;
  return text;
}

absl::Status write_file(const std::string& path, std::string_view text, WriteMode mode, Duration timeout) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  FileDescriptor file(open(path.c_str(), flags | (mode == WriteMode::append ? O_APPEND : O_TRUNC), 0666));
  constexpr std::string_view kFailed = "cannot be written";
  if (!file && errno == ENXIO)
    return absl::FailedPreconditionError(fmt::format("{}: is a pipe that no process reads, or a socket", path));
  if (!file) return file_error(path, errno, kFailed);
  TimePoint deadline = Clock::now() + timeout;
  bool hung_up = false;
  while (!text.empty()) {
    const ssize_t count = write(file.get(), text.data(), text.size());
    if (count > 0) {
      text.remove_prefix(static_cast<size_t>(count));
      deadline = Clock::now() + timeout;
    } else if (count < 0 && errno == EAGAIN) {
      GRADRAIL_RETURN_IF_ERROR(await(file.get(), POLLOUT, path, deadline, hung_up));
    } else if (count < 0 && errno != EINTR) {
      return file_error(path, errno, kFailed);
    }
  }
  // NFS and quotas may report a failed write only here.
  return close(file.release()) == 0 ? absl::OkStatus() : file_error(path, errno, kFailed);
}

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    names.push_back(each->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace gradrail
