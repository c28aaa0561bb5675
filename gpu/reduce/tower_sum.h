#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu/compute/compute.h"
#include "gradrail/clock.h"

namespace gradrail::gpu {

enum class Reduce {
  automatic,  ///< NCCL if every tower has a separate GPU, otherwise the host
  nccl,
  host,
};

/// Averages the gradients of the towers of one process, buffer by buffer, while the towers continue to compute. Every
/// tower starts the same buffers in the same order. The host sums in the order of the towers. NCCL uses its own order,
/// which is the same in every run on the same machine.
/// Errors   UNAVAILABLE: a device was lost, or a tower does not start. After the first error every call returns it, and
///          no call waits.
/// Threads  Each tower's calls run in the thread that owns its Compute. The first start() waits for all towers. abort()
///          may run in any thread. Destroyed when no tower uses its Compute any more.
class TowerSum {
 public:
  virtual ~TowerSum() = default;
  TowerSum(const TowerSum&) = delete;
  TowerSum& operator=(const TowerSum&) = delete;

  /// "NCCL 2.28.9" or "host".
  virtual const std::string& name() const = 0;

  /// A gradient of one tower: [count].
  struct Part {
    float* gradient = nullptr;  ///< memory of the tower's Compute; becomes the mean, and is this object's until wait()
    size_t count = 0;
    float* host = nullptr;  ///< place of the mean in host memory (pinned for speed), or null
  };

  /// Starts the sum after all earlier work of the tower's Compute, concurrently with later work. NCCL averages all
  /// `parts` in one launch. Tickets rise for each tower.
  /// A tower's first call may wait until every tower has called.
  virtual absl::StatusOr<CopyTicket> start(size_t tower, absl::Span<const Part> parts) = 0;
  /// Whether the means are in host memory; later work on the tower's Compute reads them in `gradient`. Never blocks for
  /// the other towers; true as well after an error.
  virtual bool is_done(size_t tower, CopyTicket ticket) = 0;
  virtual absl::Status wait(size_t tower, CopyTicket ticket) = 0;

  /// Ends the sums because a tower will not start any more: the others must not wait for it.
  virtual void abort(const absl::Status& why) = 0;

 protected:
  TowerSum() = default;
};

struct TowerSumOptions {
  Reduce reduce = Reduce::automatic;
  /// Time limit of the wait for a tower, or for a device.
  Duration answer_timeout = std::chrono::seconds(60);
};

/// Creates the sum for towers that compute with these, which outlive it.
/// Errors  FAILED_PRECONDITION: NCCL was requested and is not available; the text has the reason.
absl::StatusOr<std::unique_ptr<TowerSum>> tower_sum(absl::Span<Compute* const> towers,
                                                    const TowerSumOptions& options = {});

}  // namespace gradrail::gpu
