#pragma once

#include <vector>

#include "topology/plan.h"
#include "topology/plan_means.h"
#include "topology/plan_pools.h"

namespace gradrail::topology::planning {

/// Every tower and shard of the host by task, each tower with its GPU, if any; the rest of the places is still to be
/// found.
/// Errors  INVALID_ARGUMENT: more towers than GPUs, with Towers::gpu.
absl::Status deal_gpus(const Request& request, const Means& means, Placement& placement);

/// Where each tower would like to compute: beside its GPU; those without are spread over the pools by their cores.
std::vector<Home> tower_homes(const Machine& machine, const std::vector<Pool>& pools, const Placement& placement);

/// What a NIC is to somebody at `place`, better first.
struct NicRank {
  bool no_rdma = false;
  PathClass path = PathClass::across;
  bool not_active = false;
  auto operator<=>(const NicRank&) const = default;
};
NicRank rank(const Machine& machine, const Nic& nic, const PciPlace& place);

/// A place in the PCI tree's terms of who sits at no bridge.
PciPlace place_of(const Home& home);

/// Where a tower's data come from: its GPU, else its cores.
PciPlace place_of(const Machine& machine, const TowerPlace& tower, const Home& home);

void choose_tower_nics(const Machine& machine, const Means& means, const std::vector<Home>& homes,
                       Placement& placement);

/// Where each shard would like to be, beside the NIC chosen for it.
std::vector<Home> choose_shard_nics(const Machine& machine, const Request& request, const Means& means,
                                    const std::vector<Pool>& pools, const std::vector<Home>& tower_homes,
                                    Placement& placement);

}  // namespace gradrail::topology::planning
