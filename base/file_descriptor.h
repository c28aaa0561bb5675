#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace gradrail {

/// Owns a file descriptor and closes it with the object.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// Raises this process' limit of open files to at least `count`.
/// Errors  RESOURCE_EXHAUSTED: the hard limit is lower; names both and the remedy.
absl::Status allow_open_files(uint64_t count);
/// Raises the limit as far as the hard limit permits: the number of a server's connections is unknown before.
void allow_many_open_files();

struct Pipe {
  FileDescriptor reader, writer;
};

/// A pipe that exec() closes.
/// Errors  RESOURCE_EXHAUSTED: no descriptors are left.
absl::StatusOr<Pipe> open_pipe();

/// Writes all of `text`, and repeats interrupted writes. False: a write failed, errno has the cause.
bool write_all(int fd, std::string_view text);

/// Reads until the end of the file or until `max_bytes`. nullopt: a read failed, errno has the cause.
std::optional<std::string> read_up_to(int fd, size_t max_bytes);

}  // namespace gradrail
