#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/task/task_options.h"
#include "topology/machine.h"
#include "topology/plan/plan.h"
#include "transport/wait_set.h"

namespace gradrail::launch {

/// A shard, or a worker's tower, on its machine.
struct UnitPlace {
  std::string name;  ///< "ps/0 shard 1", "worker/2", "worker/2 tower 1"
  topology::CpuSet cpus;
  bool everywhere = false;  ///< those are all there are: nothing to bind
  bool shared = false;      ///< with other busy threads
  int numa_os_index = -1;   ///< where its memory should lie; -1: anywhere
  int gpu_ordinal = -1;     ///< of a tower, as the driver counts; -1: it computes on CPUs
  std::string nic;          ///< "": none
  std::string why_free;     ///< not to be bound, and why; "": bind it
};

/// The cores of this host for each of its tasks. Each task computes the plan of the whole host. Equal input gives an
/// equal plan, so that the tasks exchange no messages.
struct HostPlan {
  bool known = false;  ///< false: this machine could not be read, all else is empty
  topology::Machine machine;
  topology::Placement placement;
  topology::CpuSet task_cpus;  ///< where --cores and --reserve keep a whole task; empty: it stays as it is
  std::string why_no_gpu;      ///< why towers are planned on CPUs; "": there are GPUs for them
  bool gpu_driver_failed = false;
};

/// Warns when the machine cannot be read, which only costs speed. Prints the why-table where it was asked for.
/// Errors  INVALID_ARGUMENT: a flag asks for what this machine does not have. FAILED_PRECONDITION: --no-soft-placement,
///         and no GPU can be used; says why.
absl::StatusOr<HostPlan> plan_host(const TaskOptions& options);

/// The places of `options.task`: one per shard of a ps, one per tower of a worker.
std::vector<UnitPlace> places_of(const HostPlan& plan, const TaskOptions& options);

/// Towers of the worker `options.task`: as --towers says, else what the plan found GPUs for.
uint32_t tower_count(const HostPlan& plan, const TaskOptions& options);

std::string cpus_text(const topology::CpuSet& cpus);  ///< "cpu 3", "cpus 0-1,4"

/// Threads for the products of one of the worker's towers.
int compute_threads(const HostPlan& plan, const TaskOptions& options, size_t tower);

WaitPolicy wait_policy(const HostPlan& plan, const TaskOptions& options);

}  // namespace gradrail::launch
