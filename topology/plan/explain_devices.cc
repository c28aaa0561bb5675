#include <algorithm>

#include "fmt/format.h"
#include "topology/plan/explain.h"

namespace gradrail::topology::planning {
namespace {

std::string tower_name(const TowerPlace& tower) {
  return fmt::format("worker {} tower {}", tower.task_index, tower.tower);
}

/// The device that a NIC serves: the GPU, else the place of the tower's cores.
std::string seen_from(const Grounds& grounds, const TowerPlace& tower, const Locality& locality) {
  if (tower.gpu >= 0) return grounds.machine.gpus[tower.gpu].name;
  if (locality.numa_node < 0 && locality.package < 0) return "its cores";
  const std::string where = locality.numa_node >= 0
                                ? fmt::format("NUMA node {}", grounds.machine.numa_nodes[locality.numa_node].os_index)
                                : fmt::format("package {}", grounds.machine.packages[locality.package].os_index);
  return fmt::format("its cores ({})", where);
}

/// Text of a path: "on the same switch as gpu1".
std::string path_words(const Grounds& grounds, const Nic& nic, const PciPlace& place, const std::string& from) {
  switch (path_class(grounds.machine, place, nic.place)) {
    case PathClass::same_switch:
      return fmt::format("on the same switch as {}", from);
    case PathClass::same_root_port:
      return fmt::format("behind the same root port as {}", from);
    case PathClass::same_root:
      return fmt::format("on the same PCI root as {}", from);
    case PathClass::same_numa_node:
      return fmt::format("on the same NUMA node as {}", from);
    case PathClass::same_package:
      return fmt::format("in the package of {}, on another NUMA node", from);
    case PathClass::across:
      return fmt::format("across packages from {}", from);
    case PathClass::unknown:
      break;
  }
  return fmt::format("the path between it and {} is not recorded", from);
}

/// Reason why `other` lost against the chosen one.
std::string why_not(const Grounds& grounds, int other, int chosen, const PciPlace& place, const std::string& from) {
  const Nic& loser = grounds.machine.nics[other];
  const Nic& winner = grounds.machine.nics[chosen];
  // The fields are compared in the order of NicRank: the first difference decided.
  const NicRank lost = rank(grounds.machine, grounds.available, other, place);
  const NicRank won = rank(grounds.machine, grounds.available, chosen, place);
  if (lost.last_resort != won.last_resort) return why_slower(lost, won, winner.name);
  if (lost.no_rdma != won.no_rdma) return fmt::format("plain Ethernet, and {} carries RDMA", winner.name);
  if (lost.path != won.path) {
    return fmt::format("{}; {} is {}", path_words(grounds, loser, place, from), winner.name,
                       path_words(grounds, winner, place, from));
  }
  if (lost.minus_gbit != won.minus_gbit) return "as near, but " + why_slower(lost, won, winner.name);
  if (lost.not_active != won.not_active) {
    return fmt::format("as near, but its state is not recorded; {} is active", winner.name);
  }
  // The load does not include the tower itself: its choice is no reason for its choice.
  const NicLoad& load = grounds.towers_on_nics;
  if (!load.one_card(other, chosen) && load.card(other) != load.card(chosen) - 1) {
    return fmt::format("as near, and its card serves {} of the other towers; that of {} serves {}", load.card(other),
                       winner.name, load.card(chosen) - 1);
  }
  if (load.nic(other) != load.nic(chosen) - 1) {
    return fmt::format("as near, and serves {} of the other towers; {} serves {}", load.nic(other), winner.name,
                       load.nic(chosen) - 1);
  }
  return fmt::format("as near as {}, which serves as many of the other towers", winner.name);
}

}  // namespace

Decision explain_gpu(const Grounds& grounds, const Placement& placement, const TowerPlace& tower) {
  const Machine& machine = grounds.machine;
  Decision decision{.what = "GPU", .chosen = "none", .reason = "", .rejected = {}};
  if (tower.gpu >= 0) {
    decision.chosen = machine.gpus[tower.gpu].name;
    decision.reason = grounds.request.gpus.empty() ? "GPUs are dealt to the workers in order, evenly"
                                                   : "GPUs are dealt to the workers in the order of --gpu, evenly";
    const auto sharing = std::count_if(placement.towers.begin(), placement.towers.end(),
                                       [&](const TowerPlace& other) { return other.gpu == tower.gpu; });
    if (sharing > 1) decision.reason += fmt::format("; {} towers share it", sharing);
  } else if (grounds.request.towers == Towers::cpu) {
    decision.reason = "towers on CPUs were asked for";
  } else if (grounds.available.gpus.empty()) {
    decision.reason = machine.gpus.empty() ? "this machine has no GPU" : "no GPU of this machine can be used";
  } else {
    decision.reason = "every GPU has its tower already";
  }
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    if (static_cast<int>(i) == tower.gpu) continue;
    std::string why = grounds.available.gpu_out[i];
    const int owner = grounds.tower_of_gpu[i];
    if (owner >= 0) why = fmt::format("belongs to {}", tower_name(placement.towers[owner]));
    if (why.empty()) why = "left over: no more towers were asked for";
    decision.rejected.push_back({machine.gpus[i].name, why});
  }
  return decision;
}

Decision explain_nic(const Grounds& grounds, const TowerPlace& tower, const Locality& locality) {
  if (tower.nic < 0) return no_nic(grounds.machine, grounds.available);
  const Machine& machine = grounds.machine;
  const PciPlace place = place_of(machine, tower, locality);
  const std::string from = seen_from(grounds, tower, locality);
  Decision decision{.what = "NIC", .chosen = machine.nics[tower.nic].name, .reason = "", .rejected = {}};
  decision.reason = path_words(grounds, machine.nics[tower.nic], place, from);
  const int sharing = grounds.towers_on_nics.nic(tower.nic);
  if (sharing > 1) decision.reason += fmt::format("; {} towers share it", sharing);
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    const int other = static_cast<int>(i);
    if (other == tower.nic) continue;
    const std::string& out = grounds.available.nic_out[i];
    decision.rejected.push_back(
        {machine.nics[i].name, out.empty() ? why_not(grounds, other, tower.nic, place, from) : out});
  }
  return decision;
}

}  // namespace gradrail::topology::planning
