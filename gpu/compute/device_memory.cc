#include "gpu/compute/device_memory.h"

#include "base/status.h"
#include "fmt/format.h"

namespace gradrail::gpu {
namespace {

absl::Status refusal(const PrimaryContext& context, cuda::Result result, size_t bytes) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  context.api().cuMemGetInfo_v2(&free_bytes, &total_bytes);
  // The free bytes are read after the refusal. Other processes of the GPU may have changed them.
  constexpr double kMib = 1 << 20;
  return context.status(result, fmt::format("{:.1f} MiB of memory, of {:.1f} MiB free of {:.1f} MiB", bytes / kMib,
                                            free_bytes / kMib, total_bytes / kMib));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::allocate(SharedContext context, size_t bytes) {
  context->make_current();
  cuda::DevicePointer address = 0;
  // The driver refuses to allocate nothing, our callers have layers without parameters.
  const cuda::Result result = context->api().cuMemAlloc_v2(&address, bytes == 0 ? 1 : bytes);
  if (result != cuda::kSuccess) return refusal(*context, result, bytes);
  return std::unique_ptr<DeviceMemory>(
      new DeviceMemory(std::move(context), reinterpret_cast<std::byte*>(address), bytes));
}

DeviceMemory::~DeviceMemory() {
  if (context_->is_abandoned()) return;
  context_->make_current();
  context_->api().cuMemFree_v2(address_of(data()));
}

absl::StatusOr<std::unique_ptr<HostPin>> HostPin::pin(SharedContext context, void* data, size_t bytes) {
  if (!context->device().pinned_addresses) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: its kernels cannot use the host's addresses on this platform: copies go without pinned memory, "
        "parameters stay on the host",
        context->label()));
  }
  context->make_current();
  const cuda::Result result =
      // Portable: several devices of the process read it. DeviceMap: kernels use its host addresses.
      context->api().cuMemHostRegister_v2(data, bytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
  if (result == cuda::kSuccess) return std::unique_ptr<HostPin>(new HostPin(std::move(context), data));
  const std::string pinning = fmt::format("pinning {} bytes of host memory", bytes);
  absl::Status status = context->status(result, pinning);
  // The remedy of context->status() is for the memory of the device.
  if (result == cuda::kOutOfMemory) {
    return absl::ResourceExhaustedError(fmt::format("{}: {}: {} (the driver cannot lock more memory of this host)",
                                                    context->label(), pinning, context->driver().name_of(result)));
  }
  // The code is a separate one, because the caller can continue: another object keeps the range pinned.
  if (result == cuda::kHostMemoryAlreadyRegistered) return absl::AlreadyExistsError(status.message());
  return status;
}

HostPin::~HostPin() {
  if (context_->is_abandoned()) return;
  context_->make_current();
  context_->api().cuMemHostUnregister(data_);
}

bool is_pageable(const PrimaryContext& context, const void* data, size_t bytes) {
  // The driver has attributes for pinned and for device memory only. Both ends: a range may leave pinned memory.
  const auto is_known = [&](const std::byte* byte) {
    unsigned type = 0;
    return context.api().cuPointerGetAttribute(&type, cuda::kPointerAttributeMemoryType, address_of(byte)) ==
           cuda::kSuccess;
  };
  const auto* const first = static_cast<const std::byte*>(data);
  return bytes > 0 && !(is_known(first) && is_known(first + bytes - 1));
}

}  // namespace gradrail::gpu
