#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "gpu/compute.h"

namespace gradrail::gpu {

/// An open file descriptor, closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Device memory as the kernel hands it to other devices' drivers. The descriptor covers whole pages: the run begins
/// `offset` bytes behind its start. To be closed, by ending this, as soon as a registration has returned: the
/// registration holds the memory itself.
struct DmaBuf {
  Descriptor fd;
  size_t offset = 0;
  size_t bytes = 0;  ///< of the whole pages
};

/// Errors  FAILED_PRECONDITION: the device, the driver (CUDA 11.7 and the open kernel module) or the platform has no
/// dma-buf;
///         says so. INVALID_ARGUMENT: not memory of this Compute. UNAVAILABLE: the device was lost.
absl::StatusOr<DmaBuf> export_dma_buf(Compute& compute, const void* data, size_t bytes);

/// Makes copies of the driver's wait for each other where they touch this memory: without it a device that reads the
/// memory itself may see it before a copy to it, though the call came back. For memory that NICs are to reach.
absl::Status prepare_for_peers(Compute& compute, const void* data);

}  // namespace gradrail::gpu
