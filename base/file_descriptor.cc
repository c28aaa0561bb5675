#include "base/file_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace gradrail {

void FileDescriptor::reset(int fd) {
  const int error = errno;  // callers report the errno of a call before the destructor
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  errno = error;
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

}  // namespace gradrail
