#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "gpu/compute.h"

namespace gradrail::gpu {

/// Copies between a Compute's memory and the host beside its operations, each way on a stream of its own: unlike
/// Compute::upload() and download() they wait for nothing that was enqueued before. For whoever knows otherwise that
/// the source is complete and that nobody uses the target. Host memory should be pinned, else a copy waits for those
/// before it, and the caller with it. Errors   The first one makes all later copies do nothing; is_done() is true then,
/// and status() says it. Threads  Owner of the Compute, or anybody to whom it lends the device while it rests.
class StagedCopies {
 public:
  virtual ~StagedCopies() = default;
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  virtual CopyTicket download(void* to, const void* from, size_t bytes) = 0;
  /// Whether this download has ended. Asks for events only: never blocks.
  virtual bool is_done(CopyTicket ticket) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  /// UNAVAILABLE: the device was lost.
  virtual absl::Status status() const = 0;
  /// Until all of both ways is done; operations that are enqueued from now on see what was uploaded.
  virtual absl::Status finish() = 0;

 protected:
  StagedCopies() = default;
};

/// `compute` outlives it.
absl::StatusOr<std::unique_ptr<StagedCopies>> staged_copies(Compute& compute);

}  // namespace gradrail::gpu
