#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "topology/plan/devices.h"

namespace gradrail::topology::planning {
namespace {

/// The NICs with the best rank as seen from `place`.
std::vector<int> best_nics(const Machine& machine, const std::vector<int>& nics, const PciPlace& place) {
  std::vector<int> best;
  NicRank best_rank;
  for (const int nic : nics) {
    const NicRank seen = rank(machine, machine.nics[nic], place);
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

/// Would a tower on `from` find less company on `to`?
bool lighter(const NicLoad& load, int to, int from) {
  // + 1: the move adds this tower to the target. Without it two NICs would exchange a tower forever.
  if (load.one_card(to, from)) return load.nic(to) + 1 < load.nic(from);
  return load.card(to) + 1 < load.card(from);
}

}  // namespace

NicRank rank(const Machine& machine, const Nic& nic, const PciPlace& place) {
  // Compared field by field: RDMA counts more than nearness (rule 1 in plan.h).
  return {.no_rdma = !nic.rdma, .path = path_class(machine, place, nic.place), .not_active = !active(nic)};
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
    candidates.push_back(best_nics(machine, nics, place_of(machine, towers[t], localities[t])));
  // Towers with fewer equally near NICs choose first. Such sets are mostly nested or disjoint; then the least loaded
  // NIC is optimal for all towers.
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return candidates[a].size() < candidates[b].size(); });
  NicLoad load(machine);
  for (const size_t t : order) load.add(towers[t].nic = least_loaded(load, candidates[t]));
  // Where sets overlap without being nested, a move may still improve the result. Each move makes the loads more even,
  // so the loop ends. The bound guards against an error in this code.
  bool moved = true;
  for (size_t round = 0; moved && round < towers.size(); ++round) {
    moved = false;
    for (const size_t t : order) {
      for (const int other : candidates[t]) {
        if (other == towers[t].nic || !lighter(load, other, towers[t].nic)) continue;
        load.add(towers[t].nic, -1);
        load.add(towers[t].nic = other);
        moved = true;
      }
    }
  }
  for (TowerPlace& tower : towers)
    if (tower.gpu >= 0) tower.path = path_class(machine, machine.gpus[tower.gpu].place, machine.nics[tower.nic].place);
}

}  // namespace gradrail::topology::planning
