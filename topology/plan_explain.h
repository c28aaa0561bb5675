#pragma once

#include <vector>

#include "topology/plan.h"
#include "topology/plan_cores.h"
#include "topology/plan_devices.h"
#include "topology/plan_means.h"
#include "topology/plan_pools.h"

namespace gradrail::topology::planning {

/// What the placement was made from.
struct Grounds {
  const Machine& machine;
  const Request& request;
  const Means& means;
  const std::vector<Pool>& pools;
  const std::vector<Home>& homes;  ///< of towers
  const Crowd& crowd;
};

/// The wait policy, the notes, and each tower's and shard's decisions.
void explain(const Grounds& grounds, Placement& placement);

/// One decision each.
Decision explain_gpu(const Grounds& grounds, const Placement& placement, const TowerPlace& tower);
Decision explain_nic(const Grounds& grounds, const Placement& placement, size_t tower);
Decision explain_cores(const Grounds& grounds, const TowerPlace& tower);
Decision explain_cores(const Grounds& grounds, const ShardPlace& shard);
Decision explain_memory(const Grounds& grounds, const TowerPlace& tower);

}  // namespace gradrail::topology::planning
