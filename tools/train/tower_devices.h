#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/compute/compute.h"
#include "gradrail/client.h"
#include "launch/placement/host_plan.h"
#include "tools/train/train_options.h"
#include "worker/models/workload.h"

namespace gradrail::tools {

/// The devices of one worker's towers, and their lines in a summary.
class TowerDevices {
 public:
  TowerDevices(const launch::HostPlan& plan, const TrainOptions& options);

  /// The GPU that the plan gives a tower; null: CPUs. One that cannot be opened is replaced by CPUs, with a warning.
  /// Errors   With --no-soft-placement or --gpu those of gpu::open_device().
  /// Threads  The tower's own.
  absl::StatusOr<std::unique_ptr<gpu::Compute>> open(size_t tower);

  /// CPUs then, with a warning. Errors  With --no-soft-placement or --gpu: `why`.
  absl::Status instead_of(size_t tower, const absl::Status& why);

  /// Where a client finds the variables; empty where they are at home in the host's memory.
  /// Errors  FAILED_PRECONDITION: --gpu-direct forbids to stage, and gradients are not in one place on a GPU; says why.
  absl::StatusOr<DeviceBlock> device_block(worker::Workload& workload);
  /// Which ways out of a GPU --gpu-direct allows, before staging; and whether it forbids that.
  std::vector<GpuTransfer> ways() const;
  bool forbids_staging() const { return direct_ != "auto" && direct_ != "staged"; }
  /// How gradients leave the GPU.
  void decided(Client& client);

  /// Towers: 0 on GPU 0 (NVIDIA H200, 0000:19:00.0), 1 on CPUs (…), averaged by NCCL 2.28.9
  /// GPU-Direct: staged through pinned host memory (…)                                       towers on GPUs only
  /// Nothing where no tower was to be on a GPU.
  std::vector<std::string> summary(const std::string& averaged_by) const;

 private:
  struct Tower {
    int ordinal = -1;
    std::string label;    ///< of its GPU, once opened
    std::string why_cpu;  ///< only said where there are GPUs
  };

  // Set once.
  const std::string demand_;  ///< result of launch::gpu_demand()
  const std::string direct_;  ///< --gpu-direct
  const bool checksums_;

  std::string way_ = "staged through pinned host memory (no parameter server to hand GPU memory to)";
  std::vector<Tower> towers_;  ///< each its own thread's until all are open
};

}  // namespace gradrail::tools
