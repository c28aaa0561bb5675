#include "tests/topology/plan_oracle.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/check.h"
#include "fmt/format.h"

namespace gradrail::topology {
namespace {

constexpr int kFar = 2;

struct Node {
  int package = -1, numa_node = -1;
  std::vector<CpuSet> cores;  ///< usable cpus of each
  CpuSet cpus;
};

Cost sum(Cost a, const Cost& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// Counts of threads by node.
using Counts = std::vector<int>;

/// One choice for the threads of a unit.
struct Option {
  Counts threads;
  Cost cost = {};
};

class Oracle {
 public:
  Oracle(const RandomCase& one, const Placement& placement)
      : machine_(one.machine), request_(one.request), placement_(placement) {
    std::map<std::pair<int, int>, Node> nodes;
    for (const Core& core : machine_.cores) {
      CpuSet cpus;
      for (const int cpu : core.allowed)
        if (!request_.cores || request_.cores->contains(cpu)) cpus.insert(cpu);
      if (cpus.empty()) continue;
      Node& node = nodes[{core.package, core.numa_node}];
      node.package = core.package;
      node.numa_node = core.numa_node;
      node.cores.push_back(cpus);
      node.cpus = node.cpus | cpus;
    }
    for (auto& [place, node] : nodes) nodes_.push_back(std::move(node));
    for (const Nic& nic : machine_.nics)
      if (nic.ports[0].state != PortState::down) best_gbit_ = std::max(best_gbit_, nic.ports[0].gbit_per_s);
  }

  Cost measured() const {
    std::vector<int> tower_nics, shard_nics;
    for (const TowerPlace& tower : placement_.towers) tower_nics.push_back(tower.nic);
    for (const ShardPlace& shard : placement_.shards) shard_nics.push_back(shard.nic);
    Cost cost = sum(tower_nic_cost(tower_nics), shard_nic_cost(shard_nics));
    if (placement_.oversubscribed) return sum(cost, crowded_cost());
    int gaps = 0;
    for (const TowerPlace& tower : placement_.towers) {
      const CpuSet all = tower.compute | tower.progress;
      if (is_beside(tower)) {
        const size_t first = nearest(tower.compute, place(tower));
        const size_t helper = tower.progress.empty() ? first : nearest(tower.progress, place(tower));
        cost = sum(cost, gpu_cost(place(tower), first, helper));
      } else {
        cost = sum(cost, block_cost(counts(all)));
      }
      for (const Node& node : nodes_) gaps += std::max(0, runs(node, all) - 1);
    }
    for (const ShardPlace& shard : placement_.shards)
      if (shard.nic >= 0) cost[kShardAway] += away(nearest(shard.cpus, {}), machine_.nics[shard.nic].place);
    for (const Node& node : nodes_)
      for (const CpuSet& core : node.cores) cost[kSiblings] += std::max(0, (core & busy()).count() - 1);
    // The best plan has none, as long as no thread has to go where a sibling is free.
    if (cost[kSiblings] == 0) cost[kRuns] = gaps;
    return cost;
  }

  Cost least() {
    const Cost towers = least_of_nics(placement_.towers.size(), [&](const auto& nics) { return tower_nic_cost(nics); });
    const Cost shards = least_of_nics(placement_.shards.size(), [&](const std::vector<int>& nics) {
      return sum(shard_nic_cost(nics), placement_.oversubscribed ? Cost{} : least_of_cores(nics));
    });
    return sum(sum(towers, shards), placement_.oversubscribed ? least_crowded() : Cost{});
  }

 private:
  /// Where the data of a tower come from: its GPU, else its cores.
  PciPlace place(const TowerPlace& tower) const {
    if (tower.gpu >= 0) return machine_.gpus[tower.gpu].place;
    const Counts here = counts(tower.compute | tower.progress);
    const size_t most = std::max_element(here.begin(), here.end()) - here.begin();
    PciPlace place;
    bool one_package = true;
    for (size_t n = 0; n < here.size(); ++n)
      one_package = one_package && (here[n] == 0 || nodes_[n].package == nodes_[most].package);
    // Threads that share the cpus of several nodes have no place there.
    const bool moves = placement_.oversubscribed && std::count(here.begin(), here.end(), 0) + 1 < std::ssize(here);
    place.numa_node = moves ? -1 : nodes_[most].numa_node;
    place.package = moves && !one_package ? -1 : nodes_[most].package;
    return place;
  }

  /// A GPU without a recorded place can be anywhere: its tower is as one on CPUs.
  bool is_beside(const TowerPlace& tower) const {
    return tower.gpu >= 0 && (place(tower).numa_node >= 0 || place(tower).package >= 0);
  }

  int away(size_t node, const PciPlace& place) const {
    if (place.numa_node >= 0 && nodes_[node].numa_node == place.numa_node) return 0;
    if (place.package < 0) return place.numa_node < 0 ? 0 : kFar;
    if (nodes_[node].package != place.package) return kFar;
    return place.numa_node < 0 ? 0 : 1;
  }

  size_t nearest(const CpuSet& cpus, const PciPlace& place) const {
    size_t best = nodes_.size();
    for (size_t n = 0; n < nodes_.size(); ++n)
      if (nodes_[n].cpus.intersects(cpus) && (best == nodes_.size() || away(n, place) < away(best, place))) best = n;
    GRADRAIL_CHECK(best < nodes_.size());
    return best;
  }

  Counts counts(const CpuSet& cpus) const {
    Counts counts;
    for (const Node& node : nodes_) counts.push_back((node.cpus & cpus).count());
    return counts;
  }

  CpuSet busy() const {
    CpuSet busy;
    for (const TowerPlace& tower : placement_.towers) busy = busy | tower.compute | tower.progress;
    for (const ShardPlace& shard : placement_.shards) busy = busy | shard.cpus;
    return busy;
  }

  static int runs(const Node& node, const CpuSet& cpus) {
    int runs = 0;
    bool inside = false;
    for (const CpuSet& core : node.cores) {
      runs += !inside && core.intersects(cpus) ? 1 : 0;
      inside = core.intersects(cpus);
    }
    return runs;
  }

  Cost gpu_cost(const PciPlace& gpu, size_t first, size_t helper) const {
    Cost cost{};
    cost[kGpuAway] = away(first, gpu) + away(helper, gpu);
    PciPlace beside;
    beside.numa_node = nodes_[first].numa_node;
    beside.package = nodes_[first].package;
    cost[kProgressAway] = away(helper, beside);
    cost[kCrossing] = away(first, gpu) == kFar ? 1 : 0;
    cost[kHelperCrossing] = away(helper, gpu) == kFar ? 1 : 0;
    return cost;
  }

  Cost block_cost(const Counts& threads) const {
    Cost cost{};
    std::map<int, int> packages;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      cost[kPools] += threads[n] > 0 ? 1 : 0;
      if (threads[n] > 0) ++packages[nodes_[n].package];
    }
    --cost[kPools];
    cost[kPackages] = static_cast<int>(packages.size()) - 1;
    return cost;
  }

  Cost kind_cost(int nic, CostField last_resort, CostField no_rdma, CostField slowness, CostField inactive) const {
    Cost cost{};
    if (nic < 0) return cost;
    const NicPort& port = machine_.nics[nic].ports[0];
    cost[last_resort] = 10 * port.gbit_per_s <= best_gbit_ ? 1 : 0;
    cost[no_rdma] = machine_.nics[nic].rdma ? 0 : 1;
    cost[slowness] = static_cast<int>(best_gbit_ - port.gbit_per_s);
    cost[inactive] = port.state == PortState::active ? 0 : 1;
    return cost;
  }

  Cost balance_cost(const std::vector<int>& nics, CostField cards, CostField ports) const {
    Cost cost{};
    std::map<int, int> by_card, by_nic;
    for (const int nic : nics) {
      if (nic < 0) continue;
      ++by_card[machine_.nics[nic].place.address.bus];
      ++by_nic[nic];
    }
    for (const auto& [card, load] : by_card) cost[cards] += load * load;
    for (const auto& [nic, load] : by_nic) cost[ports] += load * load;
    return cost;
  }

  Cost tower_nic_cost(const std::vector<int>& nics) const {
    Cost cost = balance_cost(nics, kTowerCards, kTowerPorts);
    for (size_t t = 0; t < nics.size(); ++t) {
      cost = sum(cost, kind_cost(nics[t], kTowerLastResort, kTowerNoRdma, kTowerSlowness, kTowerInactive));
      if (nics[t] < 0) continue;
      const PciPlace from = place(placement_.towers[t]);
      cost[kTowerPath] += static_cast<int>(path_class(machine_, from, machine_.nics[nics[t]].place));
    }
    return cost;
  }

  Cost shard_nic_cost(const std::vector<int>& nics) const {
    Cost cost = balance_cost(nics, kShardCards, kShardPorts);
    for (const int nic : nics)
      cost = sum(cost, kind_cost(nic, kShardLastResort, kShardNoRdma, kShardSlowness, kShardInactive));
    return cost;
  }

  /// The least cost of all choices of a usable NIC for each of `count` units.
  template <typename CostOf>
  Cost least_of_nics(size_t count, const CostOf& cost_of_choice) const {
    std::vector<int> usable;
    for (size_t nic = 0; nic < machine_.nics.size(); ++nic)
      if (machine_.nics[nic].ports[0].state != PortState::down) usable.push_back(static_cast<int>(nic));
    if (usable.empty()) usable.push_back(-1);
    std::vector<int> choice(count, usable[0]);
    std::vector<size_t> digits(count);
    Cost least = cost_of_choice(choice);
    for (size_t i = 0; i < count;) {
      if (++digits[i] == usable.size()) digits[i] = 0;
      choice[i] = usable[digits[i]];
      i = digits[i] == 0 ? i + 1 : 0;
      if (i == 0) least = std::min(least, cost_of_choice(choice));
    }
    return least;
  }

  /// All ways to place `left` threads on the nodes.
  void spread(int left, Counts& threads, size_t node, std::vector<Option>& options) const {
    if (node + 1 == nodes_.size()) {
      threads[node] = left;
      options.push_back({threads, block_cost(threads)});
      return;
    }
    for (threads[node] = 0; threads[node] <= left; ++threads[node]) {
      const int here = threads[node];
      spread(left - here, threads, node + 1, options);
      threads[node] = here;
    }
  }

  std::vector<std::vector<Option>> options_of_units(const std::vector<int>& shard_nics, Counts& fixed) const {
    std::vector<std::vector<Option>> units;
    const Counts none(nodes_.size());
    for (const TowerPlace& tower : placement_.towers) {
      std::vector<Option>& options = units.emplace_back();
      if (!is_beside(tower)) {
        Counts threads = none;
        spread((tower.compute | tower.progress).count(), threads, 0, options);
        continue;
      }
      for (size_t first = 0; first < nodes_.size(); ++first) {
        for (size_t helper = 0; helper < nodes_.size(); ++helper) {
          if (tower.progress.empty() && helper != first) continue;
          Option option{none, gpu_cost(place(tower), first, helper)};
          ++option.threads[first];
          if (!tower.progress.empty()) ++option.threads[helper];
          options.push_back(option);
        }
      }
      // Its further cores stay where they are.
      const Counts compute = counts(tower.compute);
      for (size_t n = 0; n < nodes_.size(); ++n) fixed[n] += compute[n];
      --fixed[nearest(tower.compute, place(tower))];
    }
    for (const int nic : shard_nics) {
      std::vector<Option>& options = units.emplace_back();
      for (size_t n = 0; n < nodes_.size(); ++n) {
        Option option{none, {}};
        ++option.threads[n];
        if (nic >= 0) option.cost[kShardAway] = away(n, machine_.nics[nic].place);
        options.push_back(option);
      }
    }
    return units;
  }

  /// Over all nodes for all threads. The rest of the search depends on the number of threads on each node alone.
  Cost least_of_cores(const std::vector<int>& shard_nics) const {
    Counts begin(nodes_.size());
    const std::vector<std::vector<Option>> units = options_of_units(shard_nics, begin);
    std::map<Counts, Cost> reached{{begin, Cost{}}};
    for (const std::vector<Option>& options : units) {
      std::map<Counts, Cost> next;
      for (const auto& [before, cost_before] : reached) {
        for (const Option& option : options) {
          Counts after = before;
          bool fits = true;
          Cost cost = sum(cost_before, option.cost);
          for (size_t n = 0; n < after.size() && fits; ++n) {
            const int cores = static_cast<int>(nodes_[n].cores.size());
            after[n] += option.threads[n];
            fits = after[n] <= nodes_[n].cpus.count();
            cost[kSiblings] += std::max(0, after[n] - cores) - std::max(0, before[n] - cores);
          }
          if (!fits) continue;
          const auto [at, is_new] = next.emplace(after, cost);
          if (!is_new) at->second = std::min(at->second, cost);
        }
      }
      reached = std::move(next);
    }
    GRADRAIL_CHECK(!reached.empty());
    Cost least = reached.begin()->second;
    for (const auto& [threads, cost] : reached) least = std::min(least, cost);
    return least;
  }

  /// Threads share cpus: how far the nearest cpus are that a GPU's tower may use.
  Cost crowded_cost() const {
    Cost cost{};
    for (const TowerPlace& tower : placement_.towers)
      if (tower.gpu >= 0) cost[kGpuAway] += away(nearest(tower.compute, place(tower)), place(tower));
    return cost;
  }

  Cost least_crowded() const {
    Cost cost{};
    for (const TowerPlace& tower : placement_.towers) {
      int least = kFar;
      for (size_t n = 0; n < nodes_.size(); ++n) least = std::min(least, away(n, place(tower)));
      if (tower.gpu >= 0) cost[kGpuAway] += least;
    }
    return cost;
  }

  const Machine& machine_;
  const Request& request_;
  const Placement& placement_;
  std::vector<Node> nodes_;
  double best_gbit_ = 0;
};

}  // namespace

Cost cost_of(const RandomCase& one, const Placement& placement) { return Oracle(one, placement).measured(); }

Cost least_cost(const RandomCase& one, const Placement& placement) { return Oracle(one, placement).least(); }

std::string describe(const Cost& plan, const Cost& least) {
  constexpr const char* kNames[] = {"last resorts of towers",
                                    "towers without RDMA",
                                    "paths",
                                    "slowness",
                                    "inactive",
                                    "load of cards",
                                    "load of NICs",
                                    "last resorts",
                                    "shards without RDMA",
                                    "slowness of shards",
                                    "inactive, of shards",
                                    "crossing",
                                    "progress threads crossing",
                                    "siblings",
                                    "GPU distance",
                                    "progress distance",
                                    "shard distance",
                                    "shards of cards",
                                    "shards of NICs",
                                    "packages",
                                    "nodes",
                                    "runs"};
  static_assert(std::size(kNames) == kCostFields);
  std::string text;
  for (size_t i = 0; i < plan.size(); ++i)
    if (plan[i] != least[i])
      text += fmt::format("{}{}: {} instead of {}", text.empty() ? "" : ", ", kNames[i], plan[i], least[i]);
  return text;
}

}  // namespace gradrail::topology
