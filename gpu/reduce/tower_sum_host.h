#pragma once

#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "gpu/reduce/tower_sum.h"

namespace gradrail::gpu {

/// Each tower downloads its gradient. The thread that detects the last arrival adds the gradients in the order of the
/// towers. Each tower uploads the mean. Works with any mixture of devices and hosts.
class HostTowerSum final : public TowerSum {
 public:
  HostTowerSum(absl::Span<Compute* const> towers, Duration answer_timeout);
  ~HostTowerSum() override;

  const std::string& name() const override { return name_; }
  absl::StatusOr<CopyTicket> start(size_t tower, absl::Span<const Part> parts) override;
  bool is_done(size_t tower, CopyTicket ticket) override;
  absl::Status wait(size_t tower, CopyTicket ticket) override;
  void abort(const absl::Status& why) override;

 private:
  /// Host memory of one tower for one buffer under way; stored for reuse.
  struct Staging {
    std::vector<float> values;
    std::unique_ptr<Pin> pin;
  };

  /// Work that one tower has started and that is not complete yet.
  struct Started {
    CopyTicket ticket;
    CopyTicket download;
    Part part;
    std::unique_ptr<Staging> staging;
    bool arrived = false;
  };

  struct Tower {
    Compute* compute = nullptr;
    CopyTicket last = 0;
    std::deque<Started> started;
    std::vector<std::unique_ptr<Staging>> spare;
  };

  /// The n-th buffer of every tower.
  struct Round {
    std::vector<const float*> arrived;  ///< arrived gradients, by tower
    size_t arrived_count = 0;
    size_t count = 0;
    std::vector<float> mean;
    bool done = false;
    size_t taken = 0;
  };

  absl::Status start_one(size_t tower, const Part& part);
  std::unique_ptr<Staging> find_staging(Tower& tower, size_t count);
  void advance(size_t tower);
  absl::Status arrive(size_t tower, Started& started);
  bool deliver(Tower& tower, Started& started);
  Round& round(CopyTicket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return rounds_[ticket - first_round_]; }
  absl::Status error();

  const std::string name_ = "host";
  const Duration answer_timeout_;
  std::vector<Tower> towers_;  ///< each its owner's, once made

  Mutex mutex_;
  std::deque<Round> rounds_ ABSL_GUARDED_BY(mutex_);
  CopyTicket first_round_ ABSL_GUARDED_BY(mutex_) = 1;  ///< the ticket of rounds_.front()
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradrail::gpu
