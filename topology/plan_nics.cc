#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "topology/plan_devices.h"

namespace gradrail::topology::planning {
namespace {

/// How many each NIC, and each card, serves already.
class Load {
 public:
  explicit Load(const Machine& machine) : machine_(machine), nics_(machine.nics.size()) {}

  int nic(int index) const { return nics_[index]; }
  int card(int index) const {
    const auto at = cards_.find(card_of(index));
    return at == cards_.end() ? 0 : at->second;
  }
  void add(int index) {
    ++nics_[index];
    ++cards_[card_of(index)];
  }

 private:
  /// Ports of one card are its functions, and share its PCI link.
  PciAddress card_of(int index) const {
    PciAddress address = machine_.nics[index].place.address;
    address.function = 0;
    return address;
  }

  const Machine& machine_;
  std::vector<int> nics_;
  std::map<PciAddress, int> cards_;
};

std::vector<int> usable_nics(const Means& means) {
  std::vector<int> nics;
  for (size_t i = 0; i < means.nic_out.size(); ++i)
    if (means.nic_out[i].empty()) nics.push_back(static_cast<int>(i));
  return nics;
}

/// The NICs that nobody beats as seen from `place`.
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

}  // namespace

NicRank rank(const Machine& machine, const Nic& nic, const PciPlace& place) {
  return {.no_rdma = !nic.rdma, .path = path_class(machine, place, nic.place), .not_active = !active(nic)};
}

PciPlace place_of(const Home& home) {
  PciPlace place;
  place.numa_node = home.numa_node;
  place.package = home.package;
  return place;
}

PciPlace place_of(const Machine& machine, const TowerPlace& tower, const Home& home) {
  return tower.gpu >= 0 ? machine.gpus[tower.gpu].place : place_of(home);
}

void choose_tower_nics(const Machine& machine, const Means& means, const std::vector<Home>& homes,
                       Placement& placement) {
  const std::vector<int> nics = usable_nics(means);
  if (nics.empty()) return;
  std::vector<std::vector<int>> candidates;
  for (size_t t = 0; t < placement.towers.size(); ++t)
    candidates.push_back(best_nics(machine, nics, place_of(machine, placement.towers[t], homes[t])));
  // Who has fewer equally near ones chooses first: in a tree such sets are nested or apart, and then the least loaded
  // is the best for all.
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return candidates[a].size() < candidates[b].size(); });
  Load load(machine);
  for (const size_t t : order) {
    TowerPlace& tower = placement.towers[t];
    tower.nic = *std::min_element(candidates[t].begin(), candidates[t].end(), [&](int a, int b) {
      return std::tuple(load.card(a), load.nic(a), a) < std::tuple(load.card(b), load.nic(b), b);
    });
    load.add(tower.nic);
    if (tower.gpu >= 0) {
      tower.path = path_class(machine, machine.gpus[tower.gpu].place, machine.nics[tower.nic].place);
    }
  }
}

std::vector<Home> choose_shard_nics(const Machine& machine, const Request& request, const Means& means,
                                    const std::vector<Pool>& pools, const std::vector<Home>& tower_homes,
                                    Placement& placement) {
  // Room is what towers leave of a pool; a shard needs one core of it.
  std::vector<int> room;
  for (const Pool& pool : pools) room.push_back(static_cast<int>(pool.cores.size()));
  const auto near = [&](const Home& home) {
    int best = -1;
    for (size_t p = 0; p < pools.size(); ++p) {
      if (distance(pools[p], home) == 0 && (best < 0 || room[p] > room[best])) best = static_cast<int>(p);
    }
    return best;
  };
  for (const Home& home : tower_homes)
    if (const int pool = near(home); pool >= 0) room[pool] -= request.progress_threads ? 2 : 1;

  const std::vector<int> nics = usable_nics(means);
  Load towers(machine), shards(machine);
  for (const TowerPlace& tower : placement.towers)
    if (tower.nic >= 0) towers.add(tower.nic);
  std::vector<Home> homes;
  for (ShardPlace& shard : placement.shards) {
    const auto key = [&](int nic) {
      const NicRank seen = rank(machine, machine.nics[nic], {});
      const int pool = near(home_of(machine, machine.nics[nic].place));
      const int left = pool < 0 ? 0 : room[pool];
      return std::tuple(seen.no_rdma, seen.not_active, left <= 0, shards.card(nic), shards.nic(nic), towers.card(nic),
                        -left, nic);
    };
    const auto nic = std::min_element(nics.begin(), nics.end(), [&](int a, int b) { return key(a) < key(b); });
    Home home;
    if (nic != nics.end()) {
      shard.nic = *nic;
      shards.add(*nic);
      home = home_of(machine, machine.nics[*nic].place);
    }
    if (const int pool = near(home); pool >= 0) {
      --room[pool];
      home = {.numa_node = pools[pool].numa_node, .package = pools[pool].package};
    }
    homes.push_back(home);
  }
  return homes;
}

}  // namespace gradrail::topology::planning
