#include <algorithm>

#include "fmt/format.h"
#include "topology/plan/explain.h"

namespace gradrail::topology::planning {
namespace {

std::string node_name(const Machine& machine, int node) {
  return fmt::format("NUMA node {}", machine.numa_nodes[node].os_index);
}

std::string pool_name(const Machine& machine, const Pool& pool) {
  if (pool.numa_node >= 0) return node_name(machine, pool.numa_node);
  return pool.package >= 0 ? fmt::format("package {}", machine.packages[pool.package].os_index) : "the machine";
}

/// Names of the pools of these cpus: "NUMA node 0, NUMA node 1".
std::string pools_of(const Grounds& grounds, const CpuSet& cpus) {
  std::string names;
  for (const Pool& pool : grounds.pools)
    if (pool.cpus.intersects(cpus)) names += (names.empty() ? "" : ", ") + pool_name(grounds.machine, pool);
  return names;
}

/// The distances from `locality` of the nearest and the farthest cores taken.
std::pair<int, int> distances(const Grounds& grounds, const CpuSet& taken, const Locality& locality) {
  // Inverted at first: the first pool sets both ends.
  std::pair<int, int> range{kFarthest, 0};
  for (const Pool& pool : grounds.pools) {
    if (!pool.cpus.intersects(taken)) continue;
    range.first = std::min(range.first, distance(pool, locality));
    range.second = std::max(range.second, distance(pool, locality));
  }
  return range;
}

/// Cpus that this request cannot use, pools passed over, and siblings that stay idle. `to` names the device near which
/// the chosen cores should be.
std::vector<Rejected> others(const Grounds& grounds, const CpuSet& taken, const Locality& locality,
                             const std::string& to) {
  std::vector<Rejected> rejected;
  const auto add = [&](const CpuSet& cpus, const char* why) {
    if (!cpus.empty()) rejected.push_back({fmt::format("cpus {}", cpus.to_string()), why});
  };
  add(grounds.available.closed, "closed to this process (cgroup or taskset)");
  add(grounds.available.outside, "not among those of --cores");
  add(grounds.available.reserved, "reserved");
  const int farthest = distances(grounds, taken, locality).second;
  CpuSet siblings;
  for (const Pool& pool : grounds.pools) {
    if (pool.cpus.intersects(taken)) {
      siblings = siblings | pool.siblings;
    } else if (distance(pool, locality) > farthest) {
      // A greater distance than that of the chosen cores is a separate reason; otherwise other threads took the cores.
      rejected.push_back({pool_name(grounds.machine, pool), fmt::format("farther from {}", to)});
    } else {
      rejected.push_back({pool_name(grounds.machine, pool), "for others, or not needed"});
    }
  }
  // Siblings in use are no rejected choice.
  if (!grounds.demand.oversubscribed() && grounds.demand.siblings == 0) {
    add(siblings, "hardware siblings: they come last, when every core is busy");
  }
  return rejected;
}

/// Describes the other users of these cpus; "": each thread has a core.
std::string shortage(const Grounds& grounds, const CpuSet& mine) {
  if (grounds.demand.oversubscribed()) {
    return fmt::format("; shared: {} busy threads on {} cpus", grounds.demand.threads + grounds.demand.others,
                       grounds.demand.cpus);
  }
  CpuSet siblings;
  for (const Pool& pool : grounds.pools) siblings = siblings | (pool.siblings & mine);
  if (siblings.empty()) return "";
  return fmt::format("; {} {} the sibling of a busy core: {} busy threads, {} cores", siblings.to_string(),
                     siblings.count() == 1 ? "is" : "are", grounds.demand.threads, grounds.demand.cores);
}

/// Distance of the cpus to `to`.
std::string nearness(const Grounds& grounds, const CpuSet& cpus, const Locality& locality, const std::string& to) {
  if (locality.numa_node < 0 && locality.package < 0)
    return to.empty() ? "there is no NIC to be beside" : fmt::format("the position of {} is not recorded", to);
  const auto [nearest, farthest] = distances(grounds, cpus, locality);
  if (farthest == 0) return fmt::format("beside {}", to);
  if (grounds.demand.oversubscribed() && nearest == 0) {
    return fmt::format("beside {} and farther away, because the cpus beside it alone would be too full", to);
  }
  // Some are near and some are not: the near ones were not enough.
  if (nearest == 0) return fmt::format("all that were left beside {}, the others farther away", to);
  if (nearest == 1) return fmt::format("in the package of {}; its own node had none left", to);
  return fmt::format("far from {}; its package had none left", to);
}

/// A CPU tower has no device to be near to: its threads should be near each other.
std::string togetherness(const Grounds& grounds, const CpuSet& cpus, const Locality& locality) {
  const int farthest = distances(grounds, cpus, locality).second;
  if (grounds.demand.oversubscribed()) return "where the fewest threads are";
  if (farthest == 0) return "an even share, near each other";
  if (farthest < kFarthest) return "an even share, of one package: more than one NUMA node has left";
  return "an even share: more than one package has left";
}

/// Makes a decision. `how`: their distance to `to`.
Decision decide(const Grounds& grounds, const CpuSet& cpus, const Locality& locality, const std::string& to,
                const std::string& how) {
  Decision decision{.what = "cores", .chosen = cpus.to_string(), .reason = "", .rejected = {}};
  decision.reason = fmt::format("{}: {}{}", pools_of(grounds, cpus), how, shortage(grounds, cpus));
  decision.rejected = others(grounds, cpus, locality, to);
  return decision;
}

}  // namespace

Decision explain_cores(const Grounds& grounds, const TowerPlace& tower, const Locality& locality) {
  const CpuSet cpus = tower.compute | tower.progress;
  const std::string to = tower.gpu >= 0 ? grounds.machine.gpus[tower.gpu].name : "its part of the machine";
  // Firmware may not record the GPU's place. No nearness is claimed then.
  const bool known = tower.gpu < 0 || grounds.machine.gpus[tower.gpu].place.numa_node >= 0 ||
                     grounds.machine.gpus[tower.gpu].place.package >= 0;
  const Locality seen = known ? locality : Locality{};
  Decision decision =
      decide(grounds, cpus, seen, to,
             tower.gpu >= 0 ? nearness(grounds, cpus, seen, to) : togetherness(grounds, tower.compute, locality));
  if (!tower.progress.empty() && !grounds.demand.oversubscribed()) {
    decision.chosen = fmt::format("{}, progress {}", tower.compute.to_string(), tower.progress.to_string());
  }
  return decision;
}

Decision explain_cores(const Grounds& grounds, const ShardPlace& shard) {
  const Nic* nic = shard.nic < 0 ? nullptr : &grounds.machine.nics[shard.nic];
  const Locality locality = nic == nullptr ? Locality{} : locality_of(grounds.machine, nic->place);
  const std::string to = nic == nullptr ? "" : nic->name;
  return decide(grounds, shard.cpus, locality, to, nearness(grounds, shard.cpus, locality, to));
}

Decision explain_memory(const Grounds& grounds, const TowerPlace& tower) {
  const Machine& machine = grounds.machine;
  Decision decision{.what = "memory", .chosen = "anywhere", .reason = "", .rejected = {}};
  if (tower.numa_node >= 0) {
    decision.chosen = node_name(machine, tower.numa_node);
    const bool at_gpu = tower.gpu >= 0 && machine.gpus[tower.gpu].place.numa_node == tower.numa_node;
    decision.reason =
        at_gpu ? fmt::format("the node of {}", machine.gpus[tower.gpu].name) : "the node of most of its cores";
  } else if (machine.numa_nodes.empty()) {
    decision.reason = "this machine records no NUMA nodes";
  } else {
    decision.reason = "its cores are of several nodes, or memory of their node is closed to this process";
  }
  for (size_t n = 0; n < machine.numa_nodes.size(); ++n) {
    if (static_cast<int>(n) == tower.numa_node) continue;
    const NumaNode& node = machine.numa_nodes[n];
    const char* why = !node.allowed       ? "closed to this process"
                      : node.cpus.empty() ? "has no cpus"
                                          : "farther from its cores or its GPU";
    decision.rejected.push_back({node_name(machine, static_cast<int>(n)), why});
  }
  return decision;
}

}  // namespace gradrail::topology::planning
