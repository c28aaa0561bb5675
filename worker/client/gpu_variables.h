#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/gpu_memory.h"
#include "base/memory.h"
#include "gpu/compute/compute.h"
#include "gpu/direct/staged_copies.h"
#include "gradrail/client.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/shard_map.h"

namespace gradrail::worker {

/// A worker's variables in its GPU's memory. Network devices reach them directly; where none does, they are copied from
/// and to the host's memory, bucket by bucket.
/// Threads  Owner thread of the client.
class GpuVariables {
 public:
  /// Allocates the variables on the device. The host's copies, `parameters` and `gradients`, outlive this object. The
  /// packed gradients follow those in fp32 (ps/protocol/exchange_layout.h).
  /// Errors  FAILED_PRECONDITION: the block of the device has no room for packed gradients, or another layout.
  ///         RESOURCE_EXHAUSTED: memory of the device. UNAVAILABLE: the device was lost. Also those of
  ///         gpu::open_device().
  static absl::StatusOr<std::unique_ptr<GpuVariables>> create(const DeviceBlock& block, size_t elements,
                                                              PushFormat push, MemorySpan parameters,
                                                              MemorySpan gradients);
  ~GpuVariables();

  /// The whole block, for transports that register it in this way.
  /// Errors  FAILED_PRECONDITION: the device, its driver or a missing kernel module forbid it; the text names which.
  absl::StatusOr<MemorySpan> block(NicGpuTransfer way);
  /// The handle by which another process of this host maps the block; its error is the reason why none can.
  const absl::StatusOr<std::string>& ipc_key() const { return ipc_key_; }
  uint64_t gradients_at() const;  ///< byte offset of the gradients in the block; laid out as in the host's copy

  // Patterns, in the space behind the variables.
  uint64_t check_out_offset() const;
  uint64_t check_in_offset() const { return check_out_offset() + ps::kCheckBytes; }
  /// Errors  FAILED_PRECONDITION: the block has no such space. UNAVAILABLE: the device was lost.
  absl::Status write_check(uint64_t seed);
  /// "" when the pattern of this seed arrived, else what is wrong; the space is cleared.
  std::string compare_check(uint64_t seed);

  /// Packs the gradients of a range in the format of the push, in the device's memory.
  gpu::CopyTicket pack(ps::ElementRange range);

  // Staging.
  /// Copies gradients in the format of the push to the host. A format other than fp32 requires pack() before.
  gpu::CopyTicket download_gradients(ps::ElementRange range);
  bool is_done(gpu::CopyTicket ticket) { return copies_->is_done(ticket); }
  void upload_parameters(ps::ElementRange range);
  /// The device's first error.
  absl::Status status() const { return flushed_.ok() ? copies_->status() : flushed_; }

  /// A network device has written parameters.
  void nic_wrote() { unflushed_ = true; }
  /// Finishes copies and flushes writes of network devices: later kernels read all parameters that have arrived.
  absl::Status finish_transfers();

  // All gradients in fp32, between the device and the host's copy, which an offer of initial values uses.
  absl::Status fetch_gradients();
  absl::Status upload_gradients();
  absl::Status fetch_parameters();
  uint64_t flushes() const { return flushes_; }

 private:
  GpuVariables(const DeviceBlock& block, size_t elements, PushFormat push, MemorySpan parameters, MemorySpan gradients);
  absl::Status check_block(size_t needed, std::string_view purpose) const;
  absl::Status prepare_packing();
  uint64_t place_of(ps::ElementRange range) const;
  std::unique_ptr<gpu::Pin> pin(const MemorySpan& memory) const;

  // Set once.
  const DeviceBlock block_;
  const size_t elements_;
  const PushFormat push_;
  const MemorySpan host_parameters_;
  const MemorySpan host_gradients_;
  std::unique_ptr<gpu::Compute> device_;  ///< of the client alone: the program's streams are not its own
  absl::StatusOr<std::string> ipc_key_;
  std::unique_ptr<GpuMemorySource> sources_[2];  ///< indexed by way; created on first use
  std::unique_ptr<gpu::Pin> pins_[2];
  std::unique_ptr<gpu::Memory> rest_;  ///< remainder of each element, fp32, on the device (ModelMemory); null: fp32

  bool unflushed_ = false;
  uint64_t flushes_ = 0;
  absl::Status flushed_;                       ///< the first error
  std::unique_ptr<gpu::StagedCopies> copies_;  ///< last: ends before what it copies from and to is unpinned
};

}  // namespace gradrail::worker
