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
  std::vector<int> tower_of_gpu;   ///< by index into Machine::gpus; -1: nobody's
  std::vector<int> towers_on_nic;  ///< by index into Machine::nics
};

/// The wait policy, the notes, and each tower's and shard's decisions.
void explain(Grounds grounds, Placement& placement);

/// One decision each.
Decision explain_gpu(const Grounds& grounds, const Placement& placement, const TowerPlace& tower);
Decision explain_nic(const Grounds& grounds, const TowerPlace& tower, const Home& home);
Decision explain_cores(const Grounds& grounds, const TowerPlace& tower, const Home& home);
Decision explain_cores(const Grounds& grounds, const ShardPlace& shard);
Decision explain_memory(const Grounds& grounds, const TowerPlace& tower);

}  // namespace gradrail::topology::planning
