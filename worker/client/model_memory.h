#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/memory.h"
#include "ps/protocol/shard_map.h"
#include "worker/client/gpu_variables.h"

namespace gradrail::worker {

/// The variables of the model: parameters and gradients in host memory, tensor after tensor in the order of the schema.
/// Where the model computes on a GPU, they are copies of the variables in GPU memory.
/// Shapes   Both blocks: [elements()], fp32. Element i of the schema lies at the same offset in both.
/// Threads  Owner thread.
class ModelMemory {
 public:
  explicit ModelMemory(ps::Schema schema);

  /// `place` is called for both blocks before their first use; it may be empty. `device.device` may be null.
  /// Errors  RESOURCE_EXHAUSTED: no memory. UNAVAILABLE: the device was lost.
  absl::Status allocate(const MemoryBinder& place, const DeviceMemory& device);

  const ps::Schema& schema() const { return schema_; }
  uint64_t elements() const { return tensor_first_.back(); }
  /// Elements of one tensor in the flattened model.
  ps::ElementRange range(size_t tensor_index) const;

  /// Shapes  [elements of the tensor].
  absl::Span<float> parameters(size_t tensor_index) { return view(parameters_, tensor_index); }
  absl::Span<float> gradients(size_t tensor_index) { return view(gradients_, tensor_index); }
  MemorySpan parameter_span() const { return parameters_.span(); }
  MemorySpan gradient_span() const { return gradients_.span(); }

  /// Checksums of a range in host memory, as the headers of the exchange carry them.
  uint32_t parameter_crc32c(ps::ElementRange range) const { return crc_of(parameters_, range); }
  uint32_t gradient_crc32c(ps::ElementRange range) const { return crc_of(gradients_, range); }

  /// Null where variables are in host memory only.
  GpuVariables* gpu() const { return gpu_.get(); }
  /// Copies the parameters from the GPU to the host; nothing to do without a GPU.
  absl::Status fetch_parameters();
  /// Copies the host's parameters to the memory that gradients leave from. Initial values are sent from there: the
  /// answer to one bucket may overwrite parameters before another bucket has left.
  absl::Status copy_parameters_to_gradients();

 private:
  absl::Span<float> view(const SharedMemory& memory, size_t tensor_index) const;
  static uint32_t crc_of(const SharedMemory& memory, ps::ElementRange range);

  const ps::Schema schema_;
  std::vector<uint64_t> tensor_first_;  ///< first element of each tensor; one more entry at the end
  SharedMemory parameters_;
  SharedMemory gradients_;
  std::unique_ptr<GpuVariables> gpu_;
};

}  // namespace gradrail::worker
