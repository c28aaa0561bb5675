#include "topology/plan/plan.h"

#include <algorithm>

#include "base/status.h"
#include "fmt/format.h"
#include "topology/plan/available_resources.h"
#include "topology/plan/cores.h"
#include "topology/plan/devices.h"
#include "topology/plan/explain.h"
#include "topology/plan/pools.h"

namespace gradrail::topology {
namespace {

using namespace planning;

/// Node of each tower (or shard) where most of its threads are; the first of equals.
std::vector<int> majority_nodes(const std::vector<Pool>& pools, const std::vector<Grant>& grants, bool shards,
                                size_t owners) {
  std::vector<std::vector<int>> counts(owners, std::vector<int>(pools.size()));
  for (const Grant& grant : grants)
    if ((grant.role == ThreadRole::shard) == shards) ++counts[grant.owner][grant.pool];
  std::vector<int> nodes;
  nodes.reserve(counts.size());
  for (const std::vector<int>& count : counts)
    nodes.push_back(pools[std::max_element(count.begin(), count.end()) - count.begin()].numa_node);
  return nodes;
}

void place_memory(const Machine& machine, const std::vector<Pool>& pools, const std::vector<Grant>& grants,
                  Placement& placement) {
  // A policy for a node outside the process's cpuset would fail.
  const auto open = [&](int node) { return node >= 0 && machine.numa_nodes[node].allowed ? node : -1; };
  const std::vector<int> computes = majority_nodes(pools, grants, false, placement.towers.size());
  const std::vector<int> shards = majority_nodes(pools, grants, true, placement.shards.size());
  for (size_t t = 0; t < placement.towers.size(); ++t) {
    TowerPlace& tower = placement.towers[t];
    // Data staged for a GPU passes its PCI root: the memory belongs there even when the tower's cores are elsewhere.
    if (tower.gpu >= 0) tower.numa_node = open(machine.gpus[tower.gpu].place.numa_node);
    // The host is oversubscribed if there are no grants, and share_all() has set the node.
    if (tower.numa_node < 0 && !grants.empty()) tower.numa_node = open(computes[t]);
    tower.numa_node = open(tower.numa_node);
  }
  for (size_t s = 0; s < placement.shards.size(); ++s) {
    ShardPlace& shard = placement.shards[s];
    if (!grants.empty()) shard.numa_node = shards[s];
    shard.numa_node = open(shard.numa_node);
  }
}

}  // namespace

absl::StatusOr<Placement> plan(const Machine& machine, const Request& request) {
  GRADRAIL_RETURN_IF_ERROR(check_request(request));
  // Later steps choose among what is available. After this call only too few GPUs can be an error.
  GRADRAIL_ASSIGN_OR_RETURN(AvailableResources available, read_available_resources(machine, request));
  Placement placement;
  placement.notes = available.notes;
  GRADRAIL_RETURN_IF_ERROR(deal_gpus(machine, request, available, placement));

  const std::vector<Pool> pools = make_pools(machine, available.cpus);
  // Devices before cores: towers have cores beside their GPU, and shards beside their NIC.
  std::vector<Locality> localities = tower_localities(machine, pools, placement);
  choose_tower_nics(machine, available, localities, placement);
  const std::vector<Locality> shard_localities =
      choose_shard_nics(machine, request, available, pools, localities, placement);

  ThreadDemand demand = count_threads(pools, request, placement);
  placement.oversubscribed = demand.oversubscribed();
  std::vector<Grant> grants;
  if (demand.oversubscribed()) {
    share_all(pools, demand, localities, shard_localities, placement);
  } else {
    grants = grant_cores(pools, request, demand, localities, shard_localities);
    assign_cores(pools, grants, placement);
    demand.siblings = static_cast<int>(
        std::count_if(grants.begin(), grants.end(), [](const Grant& grant) { return grant.level > 0; }));
  }
  // The NICs of CPU towers were a guess until now.
  follow_cores(pools, placement, localities);
  choose_tower_nics(machine, available, localities, placement);
  place_memory(machine, pools, grants, placement);
  explain({machine, request, available, pools, localities, demand, {}}, placement);
  return placement;
}

std::vector<TowerPlace> towers_of(const Placement& placement, int task_index) {
  std::vector<TowerPlace> towers;
  for (const TowerPlace& tower : placement.towers)
    if (tower.task_index == task_index) towers.push_back(tower);
  return towers;
}

std::vector<ShardPlace> shards_of(const Placement& placement, int task_index) {
  std::vector<ShardPlace> shards;
  for (const ShardPlace& shard : placement.shards)
    if (shard.task_index == task_index) shards.push_back(shard);
  return shards;
}

}  // namespace gradrail::topology
