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
  PathClass path = PathClass::unknown;
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

/// Each shard's NIC; returns where the shards would like to be, beside them. Their decision "NIC" is left in each: why
/// one of several was taken depends on what was taken before.
std::vector<Home> choose_shard_nics(const Machine& machine, const Request& request, const Means& means,
                                    const std::vector<Pool>& pools, const std::vector<Home>& tower_homes,
                                    Placement& placement);

/// How many towers and shards each NIC, and each card, serves already.
class NicLoad {
 public:
  explicit NicLoad(const Machine& machine);

  int nic(int index) const { return nics_[index]; }
  int card(int index) const { return cards_[card_of_[index]]; }
  bool one_card(int a, int b) const { return card_of_[a] == card_of_[b]; }
  void add(int index, int count = 1);

 private:
  std::vector<size_t> card_of_;  ///< by NIC: ports of one card are its functions, and share its PCI link
  std::vector<int> nics_, cards_;
};

std::vector<int> usable_nics(const Means& means);

/// Why there is no NIC at all.
Decision no_nic(const Machine& machine, const Means& means);

}  // namespace gradrail::topology::planning
