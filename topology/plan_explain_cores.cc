#include <algorithm>

#include "fmt/format.h"
#include "topology/plan_explain.h"

namespace gradrail::topology::planning {
namespace {

std::string node_name(const Machine& machine, int node) {
  return fmt::format("NUMA node {}", machine.numa_nodes[node].os_index);
}

std::string pool_name(const Machine& machine, const Pool& pool) {
  if (pool.numa_node >= 0) return node_name(machine, pool.numa_node);
  return pool.package >= 0 ? fmt::format("package {}", machine.packages[pool.package].os_index) : "the machine";
}

/// Where these cpus lie: "NUMA node 0, NUMA node 1".
std::string pools_of(const Grounds& grounds, const CpuSet& cpus) {
  std::string names;
  for (const Pool& pool : grounds.pools)
    if (pool.cpus.intersects(cpus)) names += (names.empty() ? "" : ", ") + pool_name(grounds.machine, pool);
  return names;
}

/// What nobody of this request may have, the pools passed over, and siblings that stay idle.
std::vector<Rejected> others(const Grounds& grounds, const CpuSet& taken, const char* passed_over) {
  std::vector<Rejected> rejected;
  const auto add = [&](const CpuSet& cpus, const char* why) {
    if (!cpus.empty()) rejected.push_back({fmt::format("cpus {}", cpus.to_string()), why});
  };
  add(grounds.means.closed, "closed to this process (cgroup or taskset)");
  add(grounds.means.outside, "not among those of --cores");
  add(grounds.means.reserved, "reserved");
  for (const Pool& pool : grounds.pools) {
    if (!pool.cpus.intersects(taken)) {
      rejected.push_back({pool_name(grounds.machine, pool), passed_over});
    } else if (grounds.crowd.threads <= grounds.crowd.cores) {
      add(pool.siblings, "hardware siblings: they come last, when every core is busy");
    }
  }
  return rejected;
}

/// How a busy thread stands when not everybody has a core; "" when everybody has.
std::string shortage(const Grounds& grounds, const CpuSet& mine) {
  if (grounds.crowd.crowded()) {
    return fmt::format("shared by all: {} busy threads, {} cpus", grounds.crowd.threads, grounds.crowd.cpus);
  }
  CpuSet siblings;
  for (const Pool& pool : grounds.pools) siblings = siblings | (pool.siblings & mine);
  if (siblings.empty()) return "";
  return fmt::format("; {} {} the sibling of a busy core: {} busy threads, {} cores", siblings.to_string(),
                     siblings.count() == 1 ? "is" : "are", grounds.crowd.threads, grounds.crowd.cores);
}

/// Whose nearness was looked for.
std::string home_words(const Grounds& grounds, const TowerPlace& tower, const CpuSet& cpus) {
  const std::string where = pools_of(grounds, cpus);
  if (tower.gpu < 0) return fmt::format("{}: towers without a GPU are spread by the number of cores", where);
  const Gpu& gpu = grounds.machine.gpus[tower.gpu];
  const Home home = home_of(grounds.machine, gpu.place);
  if (home.numa_node < 0 && home.package < 0) return fmt::format("{}: nobody recorded where {} is", where, gpu.name);
  int farthest = 0;
  for (const Pool& pool : grounds.pools)
    if (pool.cpus.intersects(cpus)) farthest = std::max(farthest, distance(pool, home));
  constexpr const char* kWords[] = {"beside {}", "{}'s own node had too few cores, its package has",
                                    "{}'s own package had too few cores"};
  return fmt::format("{}: {}", where, fmt::format(fmt::runtime(kWords[farthest]), gpu.name));
}

}  // namespace

Decision explain_cores(const Grounds& grounds, const TowerPlace& tower) {
  const CpuSet cpus = tower.compute | tower.progress;
  Decision decision{.what = "cores", .chosen = tower.compute.to_string(), .reason = "", .rejected = {}};
  if (!tower.progress.empty() && !grounds.crowd.crowded()) {
    decision.chosen += fmt::format(", progress {}", tower.progress.to_string());
  }
  decision.reason = shortage(grounds, cpus);
  if (!grounds.crowd.crowded()) decision.reason = home_words(grounds, tower, cpus) + decision.reason;
  decision.rejected = others(grounds, cpus, "farther away, or its cores went to others first");
  return decision;
}

Decision explain_cores(const Grounds& grounds, const ShardPlace& shard) {
  Decision decision{.what = "cores", .chosen = shard.cpus.to_string(), .reason = "", .rejected = {}};
  decision.reason = shortage(grounds, shard.cpus);
  if (!grounds.crowd.crowded()) {
    const std::string where = pools_of(grounds, shard.cpus);
    std::string near = "there is no NIC to be beside";
    if (shard.nic >= 0) {
      const Nic& nic = grounds.machine.nics[shard.nic];
      const Home home = home_of(grounds.machine, nic.place);
      const bool known = home.numa_node >= 0 || home.package >= 0;
      bool beside = false;
      for (const Pool& pool : grounds.pools)
        beside = beside || (pool.cpus.intersects(shard.cpus) && distance(pool, home) == 0);
      near = !known   ? fmt::format("nobody recorded where {} is", nic.name)
             : beside ? fmt::format("beside {}", nic.name)
                      : fmt::format("no core beside {} was free", nic.name);
    }
    decision.reason = fmt::format("{}: {}{}", where, near, decision.reason);
  }
  decision.rejected = others(grounds, shard.cpus, "farther from its NIC, or its cores went to others first");
  return decision;
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
