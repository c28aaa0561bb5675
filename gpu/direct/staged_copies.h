#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gpu/compute/compute.h"

namespace gradrail::gpu {

/// Copies between a Compute's memory and the host beside its operations, one stream for each direction. Unlike
/// Compute::upload() and download() they do not wait for operations that were enqueued before. The caller guarantees
/// that the source is complete and that no operation uses the target. Host memory should be pinned; else a copy, and
/// the caller with it, waits for the copies before it. pack() shares the stream of the downloads, so that a
/// download of packed gradients needs no wait between the two.
/// Errors   After the first error all later copies do nothing; is_done() is then true, and status() returns the error.
/// Threads  One owner, which may be another thread than that of the Compute. staged_copies(): owner of the Compute.
class StagedCopies {
 public:
  virtual ~StagedCopies() = default;
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  virtual CopyTicket download(void* to, const void* from, size_t bytes) = 0;
  /// Rounds gradient + rest to a format, not fp32, and keeps what the rounding has left out in `rest`: the bits of
  /// ps::pack().
  /// Shapes  [count] each, in the Compute's memory.
  virtual CopyTicket pack(GradientFormat format, size_t count, const float* gradient, float* rest, void* packed) = 0;
  /// Whether this download or packing has ended. Queries events only: never blocks.
  virtual bool is_done(CopyTicket ticket) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  /// UNAVAILABLE: the device was lost.
  virtual absl::Status status() const = 0;
  /// Waits until all copies of both directions are done; later operations get the uploaded data.
  virtual absl::Status finish() = 0;

 protected:
  StagedCopies() = default;
};

/// `compute` outlives it.
absl::StatusOr<std::unique_ptr<StagedCopies>> staged_copies(Compute& compute);

}  // namespace gradrail::gpu
