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
  automatic,  ///< NCCL where every tower has a GPU of its own, else the host
  nccl,
  host,
};

/// Averages the gradients of the towers of one process, buffer by buffer, while the towers continue to compute. Every
/// tower starts the same buffers in the same order. The host sums in the order of the towers. NCCL uses its own order,
/// which is the same in every run on the same machine.
/// Errors   UNAVAILABLE: a device was lost, or a tower does not start. After the first error every call returns it, and
///          no call waits.
/// Threads  Each tower's calls come from the thread that owns its Compute. The first start() waits for all towers.
///          abort() may come from any thread. Destroyed when no tower uses its Compute any more.
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
    float* host = nullptr;  ///< where the mean is wanted in host memory as well (pinned for speed), or null
  };

  /// Behind everything that was enqueued on the tower's Compute, beside what comes later. NCCL averages all `parts` in
  /// one launch. Tickets rise for each tower.
  /// A tower's first call may wait until every tower has called.
  virtual absl::StatusOr<CopyTicket> start(size_t tower, absl::Span<const Part> parts) = 0;
  /// The means are in host memory; work that is enqueued on the tower's Compute from now on sees them in `gradient`.
  /// Never blocks for the other towers; true as well after an error.
  virtual bool is_done(size_t tower, CopyTicket ticket) = 0;
  virtual absl::Status wait(size_t tower, CopyTicket ticket) = 0;

  /// A tower will not come any more: the others shall not wait for it.
  virtual void abort(const absl::Status& why) = 0;

 protected:
  TowerSum() = default;
};

struct TowerSumOptions {
  Reduce reduce = Reduce::automatic;
  /// How long a tower is waited for, or a device.
  Duration answer_timeout = std::chrono::seconds(60);
};

/// For towers that compute with these, which outlive it.
/// Errors  FAILED_PRECONDITION: NCCL was asked for and cannot be had; says why.
absl::StatusOr<std::unique_ptr<TowerSum>> tower_sum(absl::Span<Compute* const> towers,
                                                    const TowerSumOptions& options = {});

}  // namespace gradrail::gpu
