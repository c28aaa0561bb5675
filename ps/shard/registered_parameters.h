#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/gpu_memory.h"
#include "ps/shard/environment.h"
#include "ps/shard/partition.h"

namespace gradrail::ps {

/// The parameters of a shard, registered with each of its transport contexts: answers are sent out of these regions.
/// Threads  Owner thread of the shard.
class RegisteredParameters {
 public:
  explicit RegisteredParameters(ShardEnvironment& environment) : environment_(environment) {}

  /// Registers the store's parameters on each context, and those in GPU memory on each context that reaches the GPU. An
  /// unreachable GPU is not an error: slots are then in host memory.
  /// Errors  Those of registering host memory.
  absl::Status open(const Partition& partition);
  void close();

  const transport::MemoryRegion* host(size_t context_index) const { return host_[context_index].get(); }
  /// Null: this context does not reach the store's GPU.
  const transport::MemoryRegion* gpu(size_t context_index) const { return gpu_[context_index].region.get(); }
  NicGpuTransfer gpu_transfer(size_t context_index) const { return gpu_[context_index].way; }
  /// Seed of the pattern behind the parameters in GPU memory.
  uint64_t gpu_check_seed() const { return gpu_check_seed_; }

 private:
  struct GpuRegion {
    NicGpuTransfer way{};
    std::unique_ptr<transport::MemoryRegion> region;
  };

  void open_gpu(const Partition& partition);
  void register_gpu(size_t context_index, NicGpuTransfer way, StoreDevice& memory);

  ShardEnvironment& environment_;
  std::vector<std::unique_ptr<transport::MemoryRegion>> host_;  ///< region of each context
  std::vector<GpuRegion> gpu_;                                  ///< region of each context
  uint64_t gpu_check_seed_ = 0;
};

}  // namespace gradrail::ps
