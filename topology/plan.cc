#include "topology/plan.h"

#include <algorithm>

#include "fmt/format.h"
#include "topology/plan_cores.h"
#include "topology/plan_devices.h"
#include "topology/plan_explain.h"
#include "topology/plan_means.h"
#include "topology/plan_pools.h"

namespace gradrail::topology {
namespace {

using namespace planning;

/// For each tower (or shard) the node where most of its cores are; of equals the first.
std::vector<int> majority_nodes(const std::vector<Pool>& pools, const std::vector<Grant>& grants, Busy busy,
                                size_t owners) {
  std::vector<std::vector<int>> counts(owners, std::vector<int>(pools.size()));
  for (const Grant& grant : grants)
    if (grant.busy == busy) ++counts[grant.owner][grant.pool];
  std::vector<int> nodes;
  nodes.reserve(counts.size());
  for (const std::vector<int>& count : counts)
    nodes.push_back(pools[std::max_element(count.begin(), count.end()) - count.begin()].numa_node);
  return nodes;
}

void place_memory(const Machine& machine, const std::vector<Pool>& pools, const std::vector<Grant>& grants,
                  Placement& placement) {
  const auto open = [&](int node) { return node >= 0 && machine.numa_nodes[node].allowed ? node : -1; };
  const std::vector<int> computes = majority_nodes(pools, grants, Busy::compute, placement.towers.size());
  const std::vector<int> shards = majority_nodes(pools, grants, Busy::shard, placement.shards.size());
  for (size_t t = 0; t < placement.towers.size(); ++t) {
    TowerPlace& tower = placement.towers[t];
    // What is staged for a GPU goes through its root: there, even where its cores had to be elsewhere.
    if (tower.gpu >= 0) tower.numa_node = open(machine.gpus[tower.gpu].place.numa_node);
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
  if (const absl::Status sound = check_request(request); !sound.ok()) return sound;
  absl::StatusOr<Means> means = read_means(machine, request);
  if (!means.ok()) return means.status();
  Placement placement;
  placement.notes = means->notes;
  if (const absl::Status dealt = deal_gpus(request, *means, placement); !dealt.ok()) return dealt;

  const std::vector<Pool> pools = make_pools(machine, means->cpus);
  const std::vector<Home> homes = tower_homes(machine, pools, placement);
  choose_tower_nics(machine, *means, homes, placement);
  const std::vector<Home> shard_homes = choose_shard_nics(machine, request, *means, pools, homes, placement);

  const Crowd crowd = count_crowd(pools, request, placement);
  std::vector<Grant> grants;
  if (crowd.crowded()) {
    share_all(pools, crowd, placement);
  } else {
    grants = grant_cores(pools, request, crowd, homes, shard_homes);
    seat(pools, grants, placement);
  }
  place_memory(machine, pools, grants, placement);
  explain({machine, request, *means, pools, homes, crowd, {}, {}}, placement);
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
