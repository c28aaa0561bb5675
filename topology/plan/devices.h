#pragma once

#include <vector>

#include "topology/plan/available_resources.h"
#include "topology/plan/plan.h"
#include "topology/plan/pools.h"

namespace gradrail::topology::planning {

/// Lists every tower and shard of the host by task, and each tower's GPU, if any. The remaining fields are set later.
/// Errors  INVALID_ARGUMENT: more towers than GPUs, with Towers::gpu.
absl::Status deal_gpus(const Machine& machine, const Request& request, const AvailableResources& available,
                       Placement& placement);

/// Preferred places of the towers: beside their GPUs. Towers without a GPU are spread over the packages and their pools
/// by the number of cores. The cores decide later where a CPU tower is.
std::vector<Locality> tower_localities(const Machine& machine, const std::vector<Pool>& pools,
                                       const Placement& placement);

/// Sets the place of each CPU tower after its cores are known; towers on GPUs keep theirs.
void follow_cores(const std::vector<Pool>& pools, const Placement& placement, std::vector<Locality>& towers);

/// Rank of a NIC for a thread at `place`; better ranks first. The fields are compared in this order.
struct NicRank {
  bool last_resort = false;  ///< an order of magnitude slower than the fastest NIC
  bool no_rdma = false;
  PathClass path = PathClass::unknown;
  int minus_gbit = 0;  ///< usable bandwidth
  bool not_active = false;
  auto operator<=>(const NicRank&) const = default;
};
NicRank rank(const Machine& machine, const AvailableResources& available, int nic, const PciPlace& place);

/// Reason why `lost` is behind `won`, as far as bandwidth decided: "slower: 10 Gb/s; mlx5_0 has 200 Gb/s". Otherwise
/// "".
std::string why_slower(const NicRank& lost, const NicRank& won, const std::string& winner);

/// The PCI place of a locality that is at no bridge.
PciPlace place_of(const Locality& locality);

/// Source of a tower's data: its GPU, otherwise its cores.
PciPlace place_of(const Machine& machine, const TowerPlace& tower, const Locality& locality);

void choose_tower_nics(const Machine& machine, const AvailableResources& available,
                       const std::vector<Locality>& localities, Placement& placement);

/// Chooses each shard's NIC; returns the preferred places of the shards, beside them. Their decision "NIC" is left in
/// each: the reason for one of several depends on the earlier choices.
std::vector<Locality> choose_shard_nics(const Machine& machine, const Request& request,
                                        const AvailableResources& available, const std::vector<Pool>& pools,
                                        const std::vector<Locality>& tower_localities, Placement& placement);

/// Number of towers and shards that each NIC, and each card, serves already.
class NicLoad {
 public:
  explicit NicLoad(const Machine& machine);

  int nic(int index) const { return nics_[index]; }
  int card(int index) const { return cards_[card_of_[index]]; }
  bool one_card(int a, int b) const { return card_of_[a] == card_of_[b]; }
  void add(int index, int count = 1);

 private:
  std::vector<size_t> card_of_;  ///< indexed by NIC: ports of one card are its functions, and share its PCI link
  std::vector<int> nics_, cards_;
};

std::vector<int> usable_nics(const AvailableResources& available);

/// Reason why there is no NIC.
Decision no_nic(const Machine& machine, const AvailableResources& available);

}  // namespace gradrail::topology::planning
