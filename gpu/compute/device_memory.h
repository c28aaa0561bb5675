#pragma once

#include "gpu/compute/compute.h"
#include "gpu/driver/device.h"

namespace gradrail::gpu {

/// Memory of one device. Ending it waits for the device's work, as cuMemFree does.
class DeviceMemory final : public Memory {
 public:
  /// Allocates device memory.
  /// Errors  RESOURCE_EXHAUSTED: the text has the requested and the free bytes. Those of to_status().
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> allocate(SharedContext context, size_t bytes);
  ~DeviceMemory() override;

  const SharedContext& context() const { return context_; }

 private:
  DeviceMemory(SharedContext context, std::byte* data, size_t bytes)
      : Memory(data, bytes), context_(std::move(context)) {}
  SharedContext context_;
};

/// Existing host memory, locked in place and registered with all devices of the process.
class HostPin final : public Pin {
 public:
  /// Errors  ALREADY_EXISTS: some of it is pinned already, which serves as well. FAILED_PRECONDITION: kernels could not
  ///         use its addresses on this platform. Others as to_status().
  static absl::StatusOr<std::unique_ptr<HostPin>> pin(SharedContext context, void* data, size_t bytes);
  ~HostPin() override;

 private:
  HostPin(SharedContext context, void* data) : context_(std::move(context)), data_(data) {}
  SharedContext context_;
  void* data_;
};

/// Host memory that is not pinned. A copy from or to it may block in the driver until its stream reaches the copy. The
/// driver has no deadline for that wait.
bool is_pageable(const PrimaryContext& context, const void* data, size_t bytes);

inline cuda::DevicePointer address_of(const void* data) { return reinterpret_cast<cuda::DevicePointer>(data); }

}  // namespace gradrail::gpu
