#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu/compute/compute.h"
#include "gradrail/client.h"

namespace gradrail::bench {

/// A worker's variables where a tower on a GPU has them: one block of its memory.
/// Threads  Owner thread of the client that uses them; outlives it.
class DeviceVariables {
 public:
  /// Creates the variables. `on`: "gpu:N". Errors: those of gpu::open_device(), and RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DeviceVariables>> create(const std::string& on, size_t elements,
                                                                 PushFormat push);

  /// The block of PlacementOptions::device.
  DeviceBlock memory() const;

  /// Shapes  values: [elements], of all tensors one behind the other.
  absl::Status write_gradients(absl::Span<const float> values);

 private:
  DeviceVariables() = default;

  int ordinal_ = 0;
  size_t elements_ = 0;
  PushFormat push_ = PushFormat::fp32;
  // The block ends before its device, because members are destroyed in reverse order.
  std::unique_ptr<gpu::Compute> device_;
  std::unique_ptr<gpu::Memory> block_;
};

/// "ipc", "dmabuf", "peermem", "staged": as --gpu-direct of `gradrail train` has them.
absl::Span<const GpuTransfer> all_gpu_transfers();

}  // namespace gradrail::bench
