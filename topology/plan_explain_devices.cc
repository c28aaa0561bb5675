#include "fmt/format.h"
#include "topology/plan_explain.h"

namespace gradrail::topology::planning {
namespace {

std::string tower_name(const TowerPlace& tower) {
  return fmt::format("worker {} tower {}", tower.task_index, tower.tower);
}

/// Who is fed by a NIC: the GPU, else the place of the tower's cores.
std::string seen_from(const Grounds& grounds, const TowerPlace& tower, const Home& home) {
  if (tower.gpu >= 0) return grounds.machine.gpus[tower.gpu].name;
  if (home.numa_node >= 0) return fmt::format("NUMA node {}", grounds.machine.numa_nodes[home.numa_node].os_index);
  return home.package >= 0 ? fmt::format("package {}", grounds.machine.packages[home.package].os_index) : "the cores";
}

/// "on the same switch as gpu1".
std::string path_words(const Grounds& grounds, PathClass path, const std::string& from) {
  switch (path) {
    case PathClass::same_switch:
      return fmt::format("on the same switch as {}", from);
    case PathClass::same_root_port:
      return fmt::format("behind the same root port as {}", from);
    case PathClass::same_root:
      return fmt::format("on the same PCI root as {}", from);
    case PathClass::same_numa_node:
      return fmt::format("on the NUMA node of {}", from);
    case PathClass::same_package:
      return fmt::format("in the package of {}, on another NUMA node", from);
    case PathClass::across:
      break;
  }
  // One package, and nothing recorded: "across packages" would be a claim.
  if (grounds.machine.packages.size() < 2) return fmt::format("as near to {} as anybody recorded", from);
  return fmt::format("across packages from {}, or nobody recorded what lies between", from);
}

/// Why there is no NIC at all.
Decision no_nic(const Grounds& grounds) {
  Decision decision{.what = "NIC", .chosen = "none", .reason = "", .rejected = {}};
  decision.reason = grounds.machine.nics.empty() ? "this machine has no NIC: shared memory and loopback only"
                                                 : "no NIC can be used: shared memory and loopback only";
  for (size_t i = 0; i < grounds.machine.nics.size(); ++i)
    decision.rejected.push_back({grounds.machine.nics[i].name, grounds.means.nic_out[i]});
  return decision;
}

int towers_on(const Placement& placement, int nic) {
  int count = 0;
  for (const TowerPlace& tower : placement.towers) count += tower.nic == nic;
  return count;
}

int shards_on(const Placement& placement, int nic) {
  int count = 0;
  for (const ShardPlace& shard : placement.shards) count += shard.nic == nic;
  return count;
}

/// Why `other` lost against what was chosen.
std::string why_not(const Grounds& grounds, const Placement& placement, int other, int chosen, const PciPlace& place,
                    const std::string& from) {
  const Nic& loser = grounds.machine.nics[other];
  const Nic& winner = grounds.machine.nics[chosen];
  const NicRank lost = rank(grounds.machine, loser, place);
  const NicRank won = rank(grounds.machine, winner, place);
  if (lost.no_rdma != won.no_rdma) return fmt::format("plain Ethernet, and {} carries RDMA", winner.name);
  if (lost.path != won.path) {
    return fmt::format("{}; {} is {}", path_words(grounds, lost.path, from), winner.name,
                       path_words(grounds, won.path, from));
  }
  if (lost.not_active != won.not_active) {
    return fmt::format("as near, but nobody recorded that it is up; {} is active", winner.name);
  }
  const int count = towers_on(placement, other);
  return count == 0 ? fmt::format("as near, with nothing to choose between it and {}", winner.name)
                    : fmt::format("as near, but it serves {} tower{}", count, count == 1 ? "" : "s");
}

}  // namespace

Decision explain_gpu(const Grounds& grounds, const Placement& placement, const TowerPlace& tower) {
  const Machine& machine = grounds.machine;
  Decision decision{.what = "GPU", .chosen = "none", .reason = "", .rejected = {}};
  if (tower.gpu >= 0) {
    decision.chosen = machine.gpus[tower.gpu].name;
    decision.reason = grounds.request.gpus.empty() ? "GPUs are dealt to the workers in order, evenly"
                                                   : "GPUs are dealt to the workers in the order of --gpu, evenly";
  } else if (grounds.request.towers == Towers::cpu) {
    decision.reason = "towers on CPUs were asked for";
  } else if (grounds.means.gpus.empty()) {
    decision.reason = machine.gpus.empty() ? "this machine has no GPU" : "no GPU of this machine can be used";
  } else {
    decision.reason = "every GPU has its tower already";
  }
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    if (static_cast<int>(i) == tower.gpu) continue;
    std::string why = grounds.means.gpu_out[i];
    for (const TowerPlace& other : placement.towers)
      if (other.gpu == static_cast<int>(i)) why = fmt::format("belongs to {}", tower_name(other));
    if (why.empty()) why = "left over: no more towers were asked for";
    decision.rejected.push_back({machine.gpus[i].name, why});
  }
  return decision;
}

Decision explain_nic(const Grounds& grounds, const Placement& placement, size_t index) {
  const TowerPlace& tower = placement.towers[index];
  if (tower.nic < 0) return no_nic(grounds);
  const Machine& machine = grounds.machine;
  const PciPlace place = place_of(machine, tower, grounds.homes[index]);
  const std::string from = seen_from(grounds, tower, grounds.homes[index]);
  Decision decision{.what = "NIC", .chosen = machine.nics[tower.nic].name, .reason = "", .rejected = {}};
  decision.reason = path_words(grounds, path_class(machine, place, machine.nics[tower.nic].place), from);
  const int sharing = towers_on(placement, tower.nic);
  if (sharing > 1) decision.reason += fmt::format("; {} towers share it", sharing);
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    const int other = static_cast<int>(i);
    if (other == tower.nic) continue;
    const std::string& out = grounds.means.nic_out[i];
    decision.rejected.push_back(
        {machine.nics[i].name, out.empty() ? why_not(grounds, placement, other, tower.nic, place, from) : out});
  }
  return decision;
}

Decision explain_nic(const Grounds& grounds, const Placement& placement, const ShardPlace& shard) {
  if (shard.nic < 0) return no_nic(grounds);
  const Machine& machine = grounds.machine;
  const Nic& chosen = machine.nics[shard.nic];
  Decision decision{.what = "NIC", .chosen = chosen.name, .reason = "", .rejected = {}};
  decision.reason =
      fmt::format("shards are spread over the NICs that have cores beside them: {} here, beside {} towers",
                  shards_on(placement, shard.nic), towers_on(placement, shard.nic));
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    const int other = static_cast<int>(i);
    if (other == shard.nic) continue;
    std::string why = grounds.means.nic_out[i];
    if (why.empty() && chosen.rdma && !machine.nics[i].rdma) {
      why = fmt::format("plain Ethernet, and {} carries RDMA", chosen.name);
    }
    if (why.empty()) {
      why = fmt::format("feeds {} shards and {} towers, or has fewer cores beside it", shards_on(placement, other),
                        towers_on(placement, other));
    }
    decision.rejected.push_back({machine.nics[i].name, why});
  }
  return decision;
}

}  // namespace gradrail::topology::planning
