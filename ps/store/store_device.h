#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/gpu_memory.h"
#include "base/memory.h"
#include "ps/store/parameter_store.h"

namespace gradrail::ps {

/// Keeps a range of memory usable for the device of a store. Ends before the store.
using PinnedRange = std::shared_ptr<const void>;  // shared_ptr: a deleter of the store's own behind a plain handle

/// Variables of a worker in the memory of a GPU of this host, mapped for the store's device. The comment in
/// ps/protocol/exchange_layout.h draws their layout.
/// Shapes  parameters, gradients: [elements of the model].
struct DeviceVariables {
  float* parameters = nullptr;
  const float* gradients = nullptr;
  std::byte* check = nullptr;  ///< space for two patterns: out, in
  PinnedRange mapping;         ///< the pointers are valid until this ends
};

using DeviceTicket = uint64_t;

/// Memory of the store's device into which network devices write gradients. update() and set() read it without a copy.
struct DeviceSlots {
  MemorySpan memory;
  PinnedRange owner;  ///< frees the memory
};

/// The GPU of a ParameterStore: its memory, for the processes and network devices that reach it directly, and the
/// progress of its work. Only a store on a GPU has one (ParameterStore::device()).
/// Errors   FAILED_PRECONDITION: the GPU cannot be reached in this way; gives the reason. Those of gpu::Compute.
/// Threads  Owner of the store.
class StoreDevice {
 public:
  virtual ~StoreDevice() = default;

  /// Announces host memory for gradients or targets: the device then reads and writes it directly. Memory that was not
  /// announced, or could not be pinned, needs one additional copy.
  virtual PinnedRange pin(MemorySpan memory) = 0;

  /// Maps the block that a worker offers: parameters and gradients of a model of `model_elements`. `key` is what
  /// gpu::export_memory() returned there.
  virtual absl::StatusOr<DeviceVariables> map_variables(const std::string& key, size_t model_elements,
                                                        PushFormat push) = 0;

  /// [parameters][gap][kCheckBytes for a pattern] as transports register it; the pattern is at check_offset() bytes.
  virtual absl::StatusOr<MemorySpan> parameters_for(NicGpuTransfer way) = 0;
  virtual size_t check_offset() const = 0;
  virtual absl::StatusOr<DeviceSlots> allocate_slots(NicGpuTransfer way, size_t bytes) = 0;

  /// Makes writes of network devices visible to the device: those with a notice that arrived before the call.
  /// The shard calls it once for each bucket that arrives in GPU memory (ps/shard/exchange.cc), before its update.
  virtual absl::Status flush_nic_writes() = 0;
  virtual absl::Status write_check(absl::Span<const std::byte> pattern) = 0;
  /// Copy to and from any memory that the device reaches.
  virtual absl::Status write(std::byte* to, absl::Span<const std::byte> from) = 0;
  virtual absl::Status read(const std::byte* from, absl::Span<std::byte> to) = 0;
  virtual absl::StatusOr<uint32_t> crc32c(const void* data, size_t bytes) = 0;

  // Progress. The store's update() and copy_out() only enqueue. Until has_ended(), the caller changes no gradient and
  // reads no target. Memory of this class does not end before work that may use it.

  /// The first error of the work. The parameters are lost, whichever call has found it.
  virtual absl::Status failure() const = 0;
  /// Starts to bring a run of ParameterStore::parameters() up to date.
  virtual void begin_download(size_t offset, size_t count) = 0;
  /// Sets a mark behind all work queued until now.
  virtual DeviceTicket mark_work() = 0;
  /// Whether the work before the mark has ended. Never blocks.
  /// Errors  Those of the work.
  virtual absl::StatusOr<bool> has_ended(DeviceTicket mark) = 0;
  /// Waits in a loop for a mark: lets other threads run at first, and sleeps some microseconds later.
  virtual void pause() = 0;
};

}  // namespace gradrail::ps
