#pragma once

#include <vector>

#include "topology/plan/available_resources.h"
#include "topology/plan/cores.h"
#include "topology/plan/devices.h"
#include "topology/plan/plan.h"
#include "topology/plan/pools.h"

namespace gradrail::topology::planning {

/// Input of the placement.
struct Grounds {
  const Machine& machine;
  const Request& request;
  const AvailableResources& available;
  const std::vector<Pool>& pools;
  const std::vector<Locality>& localities;  ///< places of towers
  const ThreadDemand& demand;
  // explain() fills both; the caller leaves them empty.
  std::vector<int> tower_of_gpu;  ///< indexed as Machine::gpus; -1: no tower uses it
  NicLoad towers_on_nics = NicLoad(machine);
};

/// The wait policy, the notes, and each tower's and shard's decisions.
void explain(Grounds grounds, Placement& placement);

/// Each function explains one decision.
Decision explain_gpu(const Grounds& grounds, const Placement& placement, const TowerPlace& tower);
Decision explain_nic(const Grounds& grounds, const TowerPlace& tower, const Locality& locality);
Decision explain_cores(const Grounds& grounds, const TowerPlace& tower, const Locality& locality);
Decision explain_cores(const Grounds& grounds, const ShardPlace& shard);
Decision explain_memory(const Grounds& grounds, const TowerPlace& tower);

}  // namespace gradrail::topology::planning
