#pragma once

#include <vector>

#include "topology/plan/available_resources.h"
#include "topology/plan/plan.h"
#include "topology/plan/pools.h"

namespace gradrail::topology::planning {

/// Lists every tower and shard of the host by task, and each tower's GPU, if any. The remaining fields are set later.
/// Errors  INVALID_ARGUMENT: more towers than GPUs, with Towers::gpu.
absl::Status deal_gpus(const Request& request, const AvailableResources& available, Placement& placement);

/// Where each tower would like to compute: beside its GPU; those without are spread over the pools by their cores.
std::vector<Locality> tower_localities(const Machine& machine, const std::vector<Pool>& pools,
                                       const Placement& placement);

/// Rank of a NIC for a thread at `place`; better ranks first.
struct NicRank {
  bool no_rdma = false;
  PathClass path = PathClass::unknown;
  bool not_active = false;
  auto operator<=>(const NicRank&) const = default;
};
NicRank rank(const Machine& machine, const Nic& nic, const PciPlace& place);

/// The PCI place of a locality that is at no bridge.
PciPlace place_of(const Locality& locality);

/// Where a tower's data come from: its GPU, else its cores.
PciPlace place_of(const Machine& machine, const TowerPlace& tower, const Locality& locality);

void choose_tower_nics(const Machine& machine, const AvailableResources& available,
                       const std::vector<Locality>& localities, Placement& placement);

/// Each shard's NIC; returns where the shards would like to be, beside them. Their decision "NIC" is left in each: why
/// one of several was taken depends on what was taken before.
std::vector<Locality> choose_shard_nics(const Machine& machine, const Request& request,
                                        const AvailableResources& available, const std::vector<Pool>& pools,
                                        const std::vector<Locality>& tower_localities, Placement& placement);

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

std::vector<int> usable_nics(const AvailableResources& available);

/// Why there is no NIC at all.
Decision no_nic(const Machine& machine, const AvailableResources& available);

}  // namespace gradrail::topology::planning
