#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launch/placement/gpu_probe.h"
#include "launch/task/task_options.h"
#include "topology/machine.h"
#include "topology/plan/plan.h"

namespace gradrail::launch {

/// Whether towers run on GPUs. With soft placement (the default), they run on CPUs if no GPU can be used.
struct GpuChoice {
  topology::Towers towers = topology::Towers::cpu;
  std::string why_none;  ///< "" when there are GPUs
  int own_count = 0;     ///< > 0: CUDA_VISIBLE_DEVICES shows those of this task alone, no other task's plan has them
};

/// The flag that forbids towers on CPUs, as it was given: "--no-soft-placement", "--gpu 0,1"; "": none does.
std::string gpu_demand(const TaskOptions& options);

/// The GPUs that the driver shows, unless the towers have no use for them. Call before any other use of the driver.
ProbedGpus probe_for(const TaskOptions& options);

/// Replaces the machine's GPUs by those that the driver shows, in its order, which `index` then counts. A place that
/// topology/ does not know stays unknown.
/// Errors  FAILED_PRECONDITION: --no-soft-placement or --gpu, and no GPU can be used; says why.
absl::StatusOr<GpuChoice> choose_gpus(const TaskOptions& options, const ProbedGpus& probed, topology::Machine& machine);

/// The facts that the planner lacks: this task's own GPUs, and why towers are on CPUs.
/// Errors  FAILED_PRECONDITION: --no-soft-placement, and fewer own GPUs than towers.
absl::Status finish_choice(const GpuChoice& choice, const TaskOptions& options, const topology::Machine& machine,
                           topology::Placement& placement);

}  // namespace gradrail::launch
