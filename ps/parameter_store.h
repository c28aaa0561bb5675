#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/gpu_memory.h"
#include "base/memory.h"
#include "ps/exchange_layout.h"
#include "ps/optimizer.h"

namespace gradrail::gpu {
class Compute;
}

namespace gradrail::ps {

/// Keeps a range of host memory pinned for the device of a store; empty for a store without one. Ends before the store.
using PinnedRange = std::shared_ptr<const void>;  // shared_ptr: a deleter of the store's own behind a plain handle

/// A worker's memory on a GPU of this host, mapped: [elements of the model] each, for the store's device alone.
struct DeviceVariables {
  float* parameters = nullptr;
  const float* gradients = nullptr;
  std::byte* check = nullptr;  ///< space for two patterns: out, in
  PinnedRange mapping;         ///< until this ends
};

/// Memory of a store's device that network devices write into: what arrived there, update() and set() take as it is.
struct DeviceSlots {
  MemorySpan memory;
  PinnedRange owner;  ///< frees it
};

/// The parameters of a shard and the optimizer's state, and how they are updated: in host memory by apply(), or in the
/// memory of a GPU by its kernels, with the same bits. Offsets and counts are elements of the shard's range.
/// Threads  One owner.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Where the parameters lie, for people: "host" or "GPU 0 (…)".
  virtual std::string where() const = 0;

  /// Memory that gradients arrive in or targets lie in: a device then reads and writes it by itself. Memory that was
  /// not announced, or could not be pinned, works too, by a copy more.
  virtual PinnedRange pin(MemorySpan memory) = 0;

  /// Maps what a worker offers, gpu::export_memory() of parameters and gradients (exchange_layout.h)
  /// of a model of so many elements.
  /// Errors  FAILED_PRECONDITION: the parameters are not on a GPU. Else as gpu::map_memory().
  virtual absl::StatusOr<DeviceVariables> map_device(const std::string& key, size_t model_elements) = 0;

  // Memory on a GPU for network devices, which transports register in this way. Errors  FAILED_PRECONDITION: the
  // parameters are in host memory, or the GPU cannot be reached so; says why.

  /// [parameters][gap][kCheckBytes for a pattern], the last at gpu_check_at().
  virtual absl::StatusOr<MemorySpan> gpu_parameters(GpuDirect way) = 0;
  size_t gpu_check_at() const { return device_gradients_at(count_) * sizeof(float); }
  virtual absl::StatusOr<DeviceSlots> gpu_slots(GpuDirect way, size_t bytes) = 0;
  /// Once a notice has come: what was written before it is seen from now on.
  virtual absl::Status flush_gpu() = 0;
  virtual absl::Status write_gpu_check(absl::Span<const std::byte> pattern) = 0;
  /// Any memory that the device reaches.
  virtual absl::Status write_gpu(std::byte* to, absl::Span<const std::byte> from) = 0;
  virtual absl::Status read_gpu(const std::byte* from, absl::Span<std::byte> to) = 0;
  virtual absl::StatusOr<uint32_t> crc32c_gpu(const float* values, size_t count) = 0;

  /// The parameters as answers are sent out of them: fresh when update() or set() has returned. Nobody else may write.
  MemorySpan parameters() const { return parameters_.span(); }
  const float* parameters_at(size_t offset) const { return mutable_parameters() + offset; }

  /// Copies a run of parameters to a target as update() takes them.
  virtual absl::Status copy_out(size_t offset, size_t count, float* target) = 0;
  /// Overwrites a run of parameters; the state stays. `values` may lie where gradients may.
  virtual absl::Status set(size_t offset, absl::Span<const float> values) = 0;
  /// One update of a run, as apply(), but by any number of gradients.
  virtual absl::Status update(size_t offset, size_t count, absl::Span<const float* const> gradients,
                              absl::Span<float* const> targets, uint64_t update_index) = 0;

  /// A run of one state vector, for checkpoints and standbys.
  virtual absl::Status copy_state(int vector, size_t offset, absl::Span<float> to) = 0;
  virtual absl::Status set_state(int vector, size_t offset, absl::Span<const float> values) = 0;

  /// For makers of stores: zeroed, shown to `place` before it is touched.
  static absl::StatusOr<SharedMemory> allocate_parameters(size_t count, const MemoryPlacer& place);

 protected:
  ParameterStore(const OptimizerConfig& optimizer, SharedMemory parameters, size_t count)
      : optimizer_(optimizer), count_(count), parameters_(std::move(parameters)) {}
  float* mutable_parameters() const { return reinterpret_cast<float*>(parameters_.data()); }

  const OptimizerConfig optimizer_;
  const size_t count_;

 private:
  SharedMemory parameters_;
};

/// Zeroed, of `count` elements; `place` is told of the memory before anybody touches it and may be empty.
/// Errors  RESOURCE_EXHAUSTED: no memory.
absl::StatusOr<std::unique_ptr<ParameterStore>> make_host_store(const OptimizerConfig& optimizer, size_t count,
                                                                const MemoryPlacer& place);

/// The same with parameters and state in the memory of `device`, and a copy of the parameters, from which answers are
/// sent, in host memory that the kernel stores into as it updates.
/// Errors  those of gpu::Compute, from every call; a device that was lost has lost what it held.
absl::StatusOr<std::unique_ptr<ParameterStore>> make_device_store(std::unique_ptr<gpu::Compute> device,
                                                                  const OptimizerConfig& optimizer, size_t count,
                                                                  const MemoryPlacer& place);

/// Makes a store of `count` elements in the thread that will own it.
using StoreMaker = std::function<absl::StatusOr<std::unique_ptr<ParameterStore>>(
    const OptimizerConfig& optimizer, size_t count, const MemoryPlacer& place)>;

/// For a device as people name it: "host" or "gpu:N", N as the driver counts. A GPU is opened once to see that it can.
/// Errors  INVALID_ARGUMENT: not such a name. Else as gpu::open_device.
absl::StatusOr<StoreMaker> store_maker(const std::string& device);

}  // namespace gradrail::ps
