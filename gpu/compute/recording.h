#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/stream_flags.h"

namespace gradrail::gpu {

/// Operations of a device that one call enqueues (a CUDA graph). Each has the addresses and sizes of the recording. A
/// launch costs some microseconds of the host, and a small model has more launches than work.
/// Errors   The first one is also that of the Compute.
/// Threads  The owner of the Compute, which outlives this object.
class Recording {
 public:
  /// Calls `operations`, which are recorded and do not run. They have run before: what they allocate is there. They may
  /// use the operations of the Compute but crc32c(), and copy_to_host() and signal() below.
  /// Errors  FAILED_PRECONDITION: not a GPU, or its driver cannot. Others as the operations.
  static absl::StatusOr<std::unique_ptr<Recording>> make(Compute& compute,
                                                         const std::function<void(Recording&)>& operations);
  /// Waits for the device.
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Copies in order with the operations; `to` is pinned.
  void copy_to_host(void* to, const void* from, size_t bytes);
  /// A point between two operations. Points are numbered from 0.
  void signal();

  /// Enqueues all operations. The replay before it has ended.
  void replay();
  /// True as well after an error: wait_for() returns it.
  bool has_reached(size_t point);
  absl::Status wait_for(size_t point);
  /// Waits until the replay has ended.
  absl::Status wait();

 private:
  Recording(DeviceCompute& device, std::unique_ptr<StreamFlags> flags) : device_(device), flags_(std::move(flags)) {}
  const cuda::Functions& api() const { return device_.context()->api(); }
  absl::Status record(const std::function<void(Recording&)>& operations);

  DeviceCompute& device_;
  const std::unique_ptr<StreamFlags> flags_;  ///< one value for each point, 1 when it is reached
  size_t points_ = 0;
  cuda::GraphExec graph_ = nullptr;
  CopyTicket end_ = 0;  ///< ticket of the newest replay
};

}  // namespace gradrail::gpu
