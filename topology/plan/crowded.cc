#include <algorithm>
#include <map>
#include <tuple>

#include "topology/plan/cores.h"

namespace gradrail::topology::planning {
namespace {

/// Threads that share cpus: a tower on a GPU, the CPU towers of one worker (they exchange data), a shard.
struct Unit {
  Locality locality;
  int threads = 0;
  std::vector<TowerPlace*> towers;
  ShardPlace* shard = nullptr;
  size_t pool = 0;
};

std::vector<Unit> units_of(const ThreadDemand& demand, const std::vector<Locality>& towers,
                           const std::vector<Locality>& shards, Placement& placement) {
  std::vector<Unit> units;
  std::map<int, Unit> by_worker;
  for (size_t t = 0; t < towers.size(); ++t) {
    TowerPlace& tower = placement.towers[t];
    // Towers on GPUs are first: the others use the remaining cpus.
    Unit& unit = towers[t].feeds_gpu ? units.emplace_back(Unit{.locality = towers[t], .towers = {}})
                                     : by_worker[tower.task_index];
    unit.threads += demand.progress ? 2 : 1;
    unit.towers.push_back(&tower);
  }
  for (auto& [worker, unit] : by_worker) units.push_back(std::move(unit));
  for (size_t s = 0; s < shards.size(); ++s)
    units.push_back({.locality = shards[s], .threads = 1, .towers = {}, .shard = &placement.shards[s]});
  return units;
}

/// Some pools together, and what runs there.
struct Domain {
  CpuSet cpus;
  int numa_node = -1;  ///< -1: several
  int64_t threads = 0;
  bool feeds_gpu = false;

  void add(const Domain& other) {
    numa_node = cpus.empty() ? other.numa_node : -1;
    cpus = cpus | other.cpus;
    threads += other.threads;
    feeds_gpu = feeds_gpu || other.feeds_gpu;
  }

  /// Nearness may cost a quarter more threads for each cpu than the average of the host. Beside a GPU: twice as many.
  /// Otherwise full cpus would slow their threads while others idle. In integers: no rounding decides.
  bool is_fair(const ThreadDemand& demand) const {
    return 4 * threads * demand.cpus <= (feeds_gpu ? 8 : 5) * int64_t{demand.threads} * cpus.count();
  }
};

}  // namespace

void share_all(const std::vector<Pool>& pools, const ThreadDemand& demand, const std::vector<Locality>& towers,
               const std::vector<Locality>& shards, Placement& placement) {
  std::vector<Unit> units = units_of(demand, towers, shards, placement);
  std::vector<Domain> near;
  for (const Pool& pool : pools) near.push_back({.cpus = pool.cpus, .numa_node = pool.numa_node});
  for (Unit& unit : units) {
    // The order is a GPU's node, then its package, then the machine; within it the cpus with the fewest threads. Other
    // units get cpus with the fewest threads, and nearness decides among equals. The first pool wins ties.
    const auto merit = [&](size_t p) {
      const int away = distance(pools[p], unit.locality);
      const double load = static_cast<double>(near[p].threads + unit.threads) / near[p].cpus.count();
      return std::tuple(unit.locality.feeds_gpu ? away : 0, load, away, p);
    };
    for (size_t p = 1; p < pools.size(); ++p)
      if (merit(p) < merit(unit.pool)) unit.pool = p;
    near[unit.pool].threads += unit.threads;
    near[unit.pool].feeds_gpu = near[unit.pool].feeds_gpu || unit.locality.feeds_gpu;
  }
  std::map<int, Domain> packages;
  Domain machine;
  for (size_t p = 0; p < pools.size(); ++p) {
    packages[pools[p].package].add(near[p]);
    machine.add(near[p]);
  }
  for (const Unit& unit : units) {
    const Domain& package = packages[pools[unit.pool].package];
    const Domain& domain = near[unit.pool].is_fair(demand) ? near[unit.pool]
                           : package.is_fair(demand)       ? package
                                                           : machine;
    for (TowerPlace* tower : unit.towers) {
      tower->compute = domain.cpus;
      if (demand.progress) tower->progress = domain.cpus;
      tower->numa_node = domain.numa_node;
    }
    if (unit.shard == nullptr) continue;
    unit.shard->cpus = domain.cpus;
    unit.shard->numa_node = domain.numa_node;
  }
}

}  // namespace gradrail::topology::planning
