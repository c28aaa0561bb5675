#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace gradrail::transport::shm {

/// Owns a shared mapping of a file, from its beginning.
class Mapping {
 public:
  enum class Mode { read, read_write };

  /// Maps the first `bytes` of a memfd with a sealed size, so that its owner cannot cause a page fault here.
  /// Errors  INVALID_ARGUMENT: not a memfd, not sealed against shrinking, or too small.
  static absl::StatusOr<Mapping> map_sealed(int fd, size_t bytes, Mode mode);

  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Whether this process can use shm: it makes memfds, and reads its own descriptors and mappings in /proc.
/// Errors  FAILED_PRECONDITION: the system forbids memfd_create(), or /proc is not mounted. RESOURCE_EXHAUSTED.
absl::Status check_usable();

/// Errors  INVALID_ARGUMENT: not a memfd of at least `bytes` that is sealed against shrinking.
absl::Status check_sealed(int fd, size_t bytes);

/// A memfd of `bytes` zeroes, its size sealed.
absl::StatusOr<FileDescriptor> create_sealed(const char* name, size_t bytes);

/// The same file without the right to write it.
absl::StatusOr<FileDescriptor> reopen_read_only(int fd);

/// An eventfd of our own.
absl::StatusOr<FileDescriptor> create_bell();

/// Checks that a descriptor from a peer is an eventfd, and makes it non-blocking: ringing must never wait.
absl::Status check_bell(int fd);
void ring_bell(int fd);

}  // namespace gradrail::transport::shm
