#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "fmt/format.h"
#include "topology/plan/devices.h"

namespace gradrail::topology::planning {
namespace {

/// NICs with the best rank from `place`.
std::vector<int> best_nics(const Machine& machine, const AvailableResources& available, const std::vector<int>& nics,
                           const PciPlace& place) {
  std::vector<int> best;
  NicRank best_rank;
  for (const int nic : nics) {
    const NicRank seen = rank(machine, available, nic, place);
    if (!best.empty() && seen > best_rank) continue;
    if (best.empty() || seen < best_rank) best.clear();
    best_rank = seen;
    best.push_back(nic);
  }
  return best;
}

bool active(const Nic& nic) {
  return std::any_of(nic.ports.begin(), nic.ports.end(),
                     [](const NicPort& port) { return port.state == PortState::active; });
}

int least_loaded(const NicLoad& load, const std::vector<int>& nics) {
  return *std::min_element(nics.begin(), nics.end(), [&](int a, int b) {
    return std::tuple(load.card(a), load.nic(a), a) < std::tuple(load.card(b), load.nic(b), b);
  });
}

/// Whether the loads are more even with one tower less on `from` and one more on `to`: those of cards, then of NICs.
bool lighter(const NicLoad& load, int to, int from) {
  const int cards = load.one_card(to, from) ? 0 : load.card(to) + 1 - load.card(from);
  return std::pair(cards, load.nic(to) + 1 - load.nic(from)) < std::pair(0, 0);
}

/// Moves one tower away from `from`, if that makes the loads more even. The target may be a NIC that gives one of its
/// towers to the next NIC in turn: sets of equally near NICs overlap.
bool relieve(int from, const std::vector<std::vector<int>>& candidates, NicLoad& load,
             std::vector<TowerPlace>& towers) {
  std::map<int, size_t> arrival;  // tower that moves to each reachable NIC
  std::queue<int> open({from});
  for (; !open.empty(); open.pop()) {
    for (size_t t = 0; t < towers.size(); ++t) {
      if (towers[t].nic != open.front()) continue;
      for (const int to : candidates[t]) {
        if (to == from || !arrival.emplace(to, t).second) continue;
        open.push(to);
        if (!lighter(load, to, from)) continue;
        for (int nic = to; nic != from;) {
          TowerPlace& tower = towers[arrival.at(nic)];
          load.add(tower.nic, -1);
          load.add(nic);
          std::swap(nic, tower.nic);
        }
        return true;
      }
    }
  }
  return false;
}

}  // namespace

NicRank rank(const Machine& machine, const AvailableResources& available, int nic, const PciPlace& place) {
  const int gbit = available.nic_gbit[nic];
  // Compared field by field: RDMA counts more than nearness (rule 1 in plan.h).
  return {.last_resort = gbit < available.fastest_gbit && int64_t{10} * gbit <= available.fastest_gbit,
          .no_rdma = !machine.nics[nic].rdma,
          .path = path_class(machine, place, machine.nics[nic].place),
          .minus_gbit = -gbit,
          .not_active = !active(machine.nics[nic])};
}

std::string why_slower(const NicRank& lost, const NicRank& won, const std::string& winner) {
  if (lost.last_resort != won.last_resort) {
    return fmt::format("a last resort: {} Gb/s, an order of magnitude less than the {} Gb/s of {}", -lost.minus_gbit,
                       -won.minus_gbit, winner);
  }
  if (lost.minus_gbit == won.minus_gbit) return "";
  return fmt::format("slower: {} Gb/s; {} has {} Gb/s", -lost.minus_gbit, winner, -won.minus_gbit);
}

PciPlace place_of(const Locality& locality) {
  // No bridge and no address: path_class() then compares node and package only.
  PciPlace place;
  place.numa_node = locality.numa_node;
  place.package = locality.package;
  return place;
}

PciPlace place_of(const Machine& machine, const TowerPlace& tower, const Locality& locality) {
  return tower.gpu >= 0 ? machine.gpus[tower.gpu].place : place_of(locality);
}

std::vector<int> usable_nics(const AvailableResources& available) {
  std::vector<int> nics;
  for (size_t i = 0; i < available.nic_out.size(); ++i)
    if (available.nic_out[i].empty()) nics.push_back(static_cast<int>(i));
  return nics;
}

NicLoad::NicLoad(const Machine& machine) : nics_(machine.nics.size()) {
  std::map<PciAddress, size_t> cards;
  for (const Nic& nic : machine.nics) {
    PciAddress address = nic.place.address;
    // Ports of one card are functions of one PCI device.
    address.function = 0;
    card_of_.push_back(cards.emplace(address, cards.size()).first->second);
  }
  cards_.resize(cards.size());
}

void NicLoad::add(int index, int count) {
  nics_[index] += count;
  cards_[card_of_[index]] += count;
}

void choose_tower_nics(const Machine& machine, const AvailableResources& available,
                       const std::vector<Locality>& localities, Placement& placement) {
  const std::vector<int> nics = usable_nics(available);
  if (nics.empty()) return;
  std::vector<TowerPlace>& towers = placement.towers;
  std::vector<std::vector<int>> candidates;
  for (size_t t = 0; t < towers.size(); ++t)
    candidates.push_back(best_nics(machine, available, nics, place_of(machine, towers[t], localities[t])));
  // Towers with fewer equally near NICs choose first. Such sets are mostly nested or disjoint; then the least loaded
  // NIC is optimal for all towers.
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return candidates[a].size() < candidates[b].size(); });
  NicLoad load(machine);
  for (const size_t t : order) load.add(towers[t].nic = least_loaded(load, candidates[t]));
  // Moves may still improve the result where sets overlap without being nested. Each makes the loads more even, so that
  // the loop ends.
  while (std::any_of(nics.begin(), nics.end(), [&](int nic) { return relieve(nic, candidates, load, towers); })) {
  }
  for (TowerPlace& tower : towers)
    if (tower.gpu >= 0) tower.path = path_class(machine, machine.gpus[tower.gpu].place, machine.nics[tower.nic].place);
}

}  // namespace gradrail::topology::planning
