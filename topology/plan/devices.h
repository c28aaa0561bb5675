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

/// Where each tower would like to compute: beside its GPU. Those without a GPU are spread over the packages and their
/// pools by the number of cores. The cores decide later where a CPU tower is.
std::vector<Locality> tower_localities(const Machine& machine, const std::vector<Pool>& pools,
                                       const Placement& placement);

/// Where each CPU tower is, after its cores are known; towers on GPUs keep theirs.
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

/// Why `lost` is behind `won`, as far as bandwidth decided: "slower: 10 Gb/s; mlx5_0 has 200 Gb/s". Else "".
std::string why_slower(const NicRank& lost, const NicRank& won, const std::string& winner);

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
