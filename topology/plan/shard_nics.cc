#include <algorithm>
#include <map>
#include <tuple>

#include "fmt/format.h"
#include "topology/plan/devices.h"

namespace gradrail::topology::planning {
namespace {

/// Cores that are left for shards, after the towers' share.
class Room {
 public:
  Room(const std::vector<Pool>& pools, const std::vector<Locality>& towers, int threads_each) : pools_(pools) {
    for (const Pool& pool : pools) free_.push_back(static_cast<int>(pool.cores.size()));
    for (const Locality& locality : towers)
      // An estimate before any core is granted: towers have the cores near their GPU first (rule 3).
      if (const int pool = roomiest(locality); pool >= 0) free_[pool] -= threads_each;
  }

  /// Pools in the locality; -1: none of them belongs to this request.
  int roomiest(const Locality& locality) const {
    int best = -1;
    for (size_t p = 0; p < pools_.size(); ++p) {
      if (distance(pools_[p], locality) == 0 && (best < 0 || free_[p] > free_[best])) best = static_cast<int>(p);
    }
    return best;
  }

  /// No core of the locality's package belongs to this request.
  bool is_across_packages(const Locality& locality) const {
    return std::all_of(pools_.begin(), pools_.end(),
                       [&](const Pool& pool) { return distance(pool, locality) == kFarthest; });
  }

  int at(const Locality& locality) const {
    const int pool = roomiest(locality);
    // Towers may need more cores than a pool has; a negative rest is as full as 0.
    return pool < 0 ? 0 : std::max(free_[pool], 0);
  }

  void take(const Locality& locality) {
    if (const int pool = roomiest(locality); pool >= 0) --free_[pool];
  }

 private:
  const std::vector<Pool>& pools_;
  std::vector<int> free_;
};

/// Criteria for a NIC, in this order; smaller is better.
struct Merit {
  NicRank rank;  ///< no path: the shard follows its NIC, so that no NIC is near or far yet
  bool across_packages, no_room;
  // The card before the NIC: ports of one card share its PCI link.
  int card_shards, nic_shards, package_shards, card_towers, minus_room, index;
  auto operator<=>(const Merit&) const = default;
};

/// Reason why `lost` is behind `won`: their first difference.
std::string why(const Merit& lost, const Merit& won, const std::string& winner) {
  if (lost.rank.last_resort != won.rank.last_resort) return why_slower(lost.rank, won.rank, winner);
  if (lost.rank.no_rdma != won.rank.no_rdma) return fmt::format("plain Ethernet, and {} carries RDMA", winner);
  if (lost.rank.minus_gbit != won.rank.minus_gbit) return why_slower(lost.rank, won.rank, winner);
  if (lost.rank.not_active != won.rank.not_active) {
    return fmt::format("its state is not recorded; {} is active", winner);
  }
  if (lost.across_packages != won.across_packages)
    return fmt::format("no core of its package can be used; {} is in the package of some", winner);
  if (lost.no_room != won.no_room) return fmt::format("no core beside it is left; {} has {}", winner, -won.minus_room);
  if (lost.card_shards != won.card_shards)
    return fmt::format("its card feeds {} of the shards already; that of {} fed {}", lost.card_shards, winner,
                       won.card_shards);
  if (lost.nic_shards != won.nic_shards)
    return fmt::format("feeds {} of the shards already; {} fed {}", lost.nic_shards, winner, won.nic_shards);
  if (lost.package_shards != won.package_shards) {
    return fmt::format("{} of the shards are in its package already; {} in that of {}", lost.package_shards,
                       won.package_shards, winner);
  }
  if (lost.card_towers != won.card_towers) {
    return fmt::format("serves {} of the towers; {} serves {}", lost.card_towers, winner, won.card_towers);
  }
  if (lost.minus_room != won.minus_room) {
    return fmt::format("{} of the cores beside it are left; {} has {}", -lost.minus_room, winner, -won.minus_room);
  }
  return fmt::format("as good as {}, which comes first", winner);
}

Decision decide(const Machine& machine, const AvailableResources& available, const std::vector<Merit>& merits,
                const Merit& won) {
  const std::string& winner = machine.nics[won.index].name;
  Decision decision{.what = "NIC", .chosen = winner, .reason = "", .rejected = {}};
  decision.reason = fmt::format("shards are spread over NICs with cores left beside them: {} here, {} shard{} before",
                                -won.minus_room, won.card_shards, won.card_shards == 1 ? "" : "s");
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    if (static_cast<int>(i) == won.index) continue;
    std::string reason = available.nic_out[i];
    for (const Merit& merit : merits)
      if (merit.index == static_cast<int>(i)) reason = why(merit, won, winner);
    decision.rejected.push_back({machine.nics[i].name, std::move(reason)});
  }
  return decision;
}

}  // namespace

Decision no_nic(const Machine& machine, const AvailableResources& available) {
  Decision decision{.what = "NIC", .chosen = "none", .reason = "", .rejected = {}};
  decision.reason = machine.nics.empty() ? "this machine has no NIC: shared memory and loopback only"
                                         : "no NIC can be used: shared memory and loopback only";
  for (size_t i = 0; i < machine.nics.size(); ++i)
    decision.rejected.push_back({machine.nics[i].name, available.nic_out[i]});
  return decision;
}

std::vector<Locality> choose_shard_nics(const Machine& machine, const Request& request,
                                        const AvailableResources& available, const std::vector<Pool>& pools,
                                        const std::vector<Locality>& tower_localities, Placement& placement) {
  Room room(pools, tower_localities, request.progress_threads ? 2 : 1);
  const std::vector<int> nics = usable_nics(available);
  NicLoad towers(machine), shards(machine);
  for (const TowerPlace& tower : placement.towers)
    if (tower.nic >= 0) towers.add(tower.nic);
  std::map<int, int> packages;  // shards served in each; -1: package not recorded
  std::vector<Locality> localities;
  for (ShardPlace& shard : placement.shards) {
    std::vector<Merit> merits;
    for (const int nic : nics) {
      const Locality locality = locality_of(machine, machine.nics[nic].place);
      const int left = room.at(locality);
      // `minus_room`: smaller is better in all fields, and more free cores are better.
      merits.push_back({rank(machine, available, nic, {}), room.is_across_packages(locality), left == 0,
                        shards.card(nic), shards.nic(nic), packages[locality.package], towers.card(nic), -left, nic});
    }
    if (merits.empty()) {
      shard.decisions = {no_nic(machine, available)};
      // A shard without a NIC may be anywhere: shared memory reaches it.
      localities.emplace_back();
      continue;
    }
    const Merit won = *std::min_element(merits.begin(), merits.end());
    shard.nic = won.index;
    shard.decisions = {decide(machine, available, merits, won)};
    shards.add(won.index);
    const Locality locality = locality_of(machine, machine.nics[won.index].place);
    ++packages[locality.package];
    localities.push_back(locality);
    room.take(locality);
  }
  return localities;
}

}  // namespace gradrail::topology::planning
