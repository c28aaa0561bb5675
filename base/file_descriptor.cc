#include "base/file_descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>

#include "base/read_file.h"
#include "fmt/format.h"

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
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe (ulimit -n)");
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

absl::StatusOr<std::string> read_file(const std::string& path, size_t max_bytes, FileKind kind) {
  // O_NOCTTY: a path that names a terminal must not make it the controlling terminal of this process.
  const int wait = kind == FileKind::regular ? O_NONBLOCK : 0;  // to open a pipe would wait for its writer
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | wait));
  struct stat facts {};
  if (!file || fstat(file.get(), &facts) != 0)
    return absl::ErrnoToStatus(errno, fmt::format("{}: cannot be read", path));
  if (S_ISDIR(facts.st_mode) || (kind == FileKind::regular && !S_ISREG(facts.st_mode)))
    return absl::InvalidArgumentError(fmt::format("{}: not a regular file", path));
  // The size of files in /proc and /sys is 0, and a file can grow: the read below has its own limit.
  const auto too_long = absl::InvalidArgumentError(fmt::format("{}: is longer than {} bytes", path, max_bytes));
  if (static_cast<size_t>(facts.st_size) > max_bytes) return too_long;
  // One byte beyond the limit separates a file of exactly `max_bytes` from a longer one.
  std::optional<std::string> text = read_up_to(file.get(), max_bytes + 1);
  if (!text) return absl::ErrnoToStatus(errno, fmt::format("{}: cannot be read", path));
  if (text->size() > max_bytes) return too_long;
  return *std::move(text);
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
