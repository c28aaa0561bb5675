#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/stream_marks.h"
#include "gpu/reduce/nccl.h"
#include "gpu/reduce/tower_sum.h"

namespace gradrail::gpu {

/// Sums by NCCL from device to device, on a separate stream beside each tower's.
class NcclTowerSum final : public TowerSum {
 public:
  /// Errors  Those of NCCL; it refuses two towers on one GPU.
  static absl::StatusOr<std::unique_ptr<NcclTowerSum>> create(const NcclLibrary& library,
                                                              absl::Span<DeviceCompute* const> towers,
                                                              Duration answer_timeout);
  ~NcclTowerSum() override;

  const std::string& name() const override { return name_; }
  absl::StatusOr<CopyTicket> start(size_t tower, absl::Span<const Part> parts) override;
  bool is_done(size_t tower, CopyTicket ticket) override;
  absl::Status wait(size_t tower, CopyTicket ticket) override;
  void abort(const absl::Status& why) override;

 private:
  /// A mean with a target in host memory that is not pinned.
  struct Delivery {
    CopyTicket ticket;
    Part part;
  };

  struct Tower {
    Tower(DeviceCompute& tower_compute, Stream own_stream, Event own_behind, Duration answer_timeout)
        : compute(tower_compute),
          stream(std::move(own_stream)),
          behind(std::move(own_behind)),
          marks(tower_compute.context(), answer_timeout) {}

    DeviceCompute& compute;
    Stream stream;
    Event behind;  ///< work that the tower had enqueued when it started the newest buffer
    StreamMarks marks;
    CopyTicket last = 0;
    bool has_started = false;
    std::deque<Delivery> deliveries;
    /// Held while NCCL is called with the communicator. abort() waits for it with a timeout, which Mutex cannot do.
    std::timed_mutex calling;
    nccl::Communicator communicator = nullptr;  ///< guarded by `calling`, except for abort()
  };

  NcclTowerSum(const NcclLibrary& library, Duration answer_timeout);
  absl::Status wait_for_all_towers(Tower& tower);
  absl::Status enqueue(Tower& tower, absl::Span<const Part> parts);
  absl::Status copy(Tower& tower, const Part& part);
  void deliver(Tower& tower, CopyTicket ticket);
  absl::Status reduce(Tower& tower, absl::Span<const Part> parts);
  absl::Status reduce_in_group(Tower& tower, absl::Span<const Part> parts);
  absl::Status error();
  bool drain(Tower& tower);
  void abort_communicators();

  const NcclLibrary& library_;
  const std::string name_;
  const Duration answer_timeout_;
  std::vector<std::unique_ptr<Tower>> towers_;  ///< each its owner's

  std::atomic<bool> failed_ = false;
  Mutex mutex_;
  ConditionVariable changed_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  size_t started_count_ ABSL_GUARDED_BY(mutex_) = 0;  ///< number of towers that have started something
};

}  // namespace gradrail::gpu
