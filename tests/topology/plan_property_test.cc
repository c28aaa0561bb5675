#include <algorithm>
#include <map>
#include <set>

#include "gtest/gtest.h"
#include "tests/topology/plan_random.h"

namespace gradrail::topology {
namespace {

/// Checks the guarantees of plan() on its results, by other means than plan() uses.
class Promise {
 public:
  Promise(const RandomCase& random, const Placement& placement)
      : machine_(random.machine), request_(random.request), placement_(placement) {
    for (const Core& core : machine_.cores) {
      CpuSet cpus;
      for (const int cpu : core.allowed)
        if ((!request_.cores || request_.cores->contains(cpu)) && !request_.reserved.contains(cpu)) cpus.insert(cpu);
      if (cpus.empty()) continue;
      cores_.push_back({cpus, core.numa_node, core.package});
      usable_ = usable_ | cpus;
    }
    for (const TowerPlace& tower : placement.towers) {
      sets_.push_back(tower.compute);
      if (request_.progress_threads) sets_.push_back(tower.progress);
    }
    for (const ShardPlace& shard : placement.shards) sets_.push_back(shard.cpus);
    for (const CpuSet& set : sets_) busy_ = busy_ | set;
    for (const TowerPlace& tower : placement.towers)
      if (tower.gpu >= 0) feeds_gpu_ = feeds_gpu_ | tower.compute | tower.progress;
  }

  void all_units_are_placed() {
    size_t shards = 0;
    for (const ProcessRequest& process : request_.processes) {
      if (process.job == Job::ps) shards += process.units;
      if (process.job == Job::worker) {
        const size_t towers = towers_of(placement_, process.task_index).size();
        EXPECT_TRUE(process.units > 0 ? towers == static_cast<size_t>(process.units) : towers >= 1) << towers;
      }
    }
    EXPECT_EQ(placement_.shards.size(), shards);
    for (const CpuSet& set : sets_) {
      EXPECT_FALSE(set.empty());
      EXPECT_TRUE(usable_.includes(set)) << set.to_string() << " of " << usable_.to_string();
    }
    for (const TowerPlace& tower : placement_.towers) EXPECT_EQ(tower.progress.empty(), !request_.progress_threads);
  }

  void no_sharing_while_there_is_room() {
    EXPECT_EQ(placement_.oversubscribed, static_cast<int>(sets_.size()) > usable_.count());
    const bool siblings =
        std::any_of(cores_.begin(), cores_.end(), [&](const Usable& core) { return (core.cpus & busy_).count() > 1; });
    EXPECT_EQ(placement_.wait == SpinMode::spin, !placement_.oversubscribed && !siblings);
    if (placement_.oversubscribed) return;
    int given = 0;
    for (const CpuSet& set : sets_) given += set.count();
    EXPECT_EQ(given, busy_.count()) << "a cpu was given twice";
    // Siblings come last, third ones after second ones. Only a GPU's thread does not leave its package for a core.
    for (const auto& core : cores_) {
      for (const auto& other : cores_) {
        if (core.cpus.intersects(feeds_gpu_) && core.package != other.package) continue;
        const int mine = (core.cpus & busy_).count(), theirs = (other.cpus & busy_).count();
        EXPECT_FALSE(mine > theirs + 1 && theirs < other.cpus.count())
            << core.cpus.to_string() << " has " << mine << " busy threads, " << other.cpus.to_string() << " " << theirs;
      }
    }
    for (const TowerPlace& tower : placement_.towers) EXPECT_LE(tower.progress.count(), 1);
    for (const ShardPlace& shard : placement_.shards) EXPECT_EQ(shard.cpus.count(), 1);
  }

  void cores_are_shared_evenly() {
    if (placement_.oversubscribed || placement_.towers.empty()) return;
    const int wanted = request_.cores_per_tower;
    int least = CpuSet::kMaxCpu, most = 0;
    for (const TowerPlace& tower : placement_.towers) {
      // A tower with a GPU has no use for more cores than its own node has, unless the request asks for them.
      if (wanted == 0 && tower.gpu >= 0) {
        const int node = machine_.gpus[tower.gpu].place.numa_node;
        EXPECT_FALSE(node >= 0 && idle_core(node)) << "a core beside a GPU idles";
        EXPECT_TRUE(node < 0 || std::any_of(machine_.numa_nodes.begin(), machine_.numa_nodes.end(),
                                            [&](const auto& one) { return one.cpus.includes(tower.compute); }))
            << tower.compute.to_string() << " is not of one node";
        continue;
      }
      least = std::min(least, tower.compute.count());
      most = std::max(most, tower.compute.count());
    }
    if (most == 0) return;
    EXPECT_LE(most, least + 1);
    EXPECT_TRUE(wanted == 0 || most <= wanted) << most;
    EXPECT_FALSE((wanted == 0 || least < wanted) && idle_core(-2)) << "a core idles that a tower could use";
  }

  void no_far_thread_while_near_cores_idle() {
    if (placement_.oversubscribed) return;
    for (const TowerPlace& tower : placement_.towers)
      if (tower.gpu >= 0) check_near(machine_.gpus[tower.gpu].place.numa_node, tower.compute);
    for (const ShardPlace& shard : placement_.shards)
      if (shard.nic >= 0) check_near(machine_.nics[shard.nic].place.numa_node, shard.cpus);
  }

  void gpus_are_ours_and_given_once() {
    std::set<int> given;
    for (const TowerPlace& tower : placement_.towers) {
      if (tower.gpu < 0) continue;
      EXPECT_TRUE(given.insert(tower.gpu).second);
      EXPECT_EQ(machine_.gpus[tower.gpu].vendor, Vendor::nvidia);
      EXPECT_NE(request_.towers, Towers::cpu);
      EXPECT_TRUE(request_.gpus.empty() || named(request_.gpus, machine_.gpus[tower.gpu].name));
    }
  }

  /// No usable NIC of the same kind (RDMA or not) is nearer than the chosen one. NICs with a tenth of the bandwidth do
  /// not count. None of equal distance is faster, and none of equal bandwidth is more certain to be up. No tower could
  /// move to an equal NIC with a card that serves two towers fewer.
  void nics_are_nearest_and_spread() {
    std::vector<int> usable;
    bool rdma = false;
    for (size_t i = 0; i < machine_.nics.size(); ++i) {
      const Nic& nic = machine_.nics[i];
      if (nic.ports[0].state == PortState::down || (request_.rdma_only && !nic.rdma)) continue;
      if (!request_.nics.empty() && !named(request_.nics, nic.name)) continue;
      usable.push_back(static_cast<int>(i));
    }
    double fastest = 0;
    for (const int nic : usable) fastest = std::max(fastest, gbit(nic));
    std::vector<int> fast;
    for (const int nic : usable)
      if (gbit(nic) > fastest / 10) fast.push_back(nic);
    for (const int nic : fast) rdma = rdma || machine_.nics[nic].rdma;
    for (const ShardPlace& shard : placement_.shards) check_kind(shard.nic, fast, rdma);
    std::map<int, int> load;
    for (const TowerPlace& tower : placement_.towers)
      if (tower.nic >= 0) ++load[card(tower.nic)];
    for (const TowerPlace& tower : placement_.towers) {
      check_kind(tower.nic, fast, rdma);
      if (tower.nic < 0 || tower.gpu < 0) continue;
      const auto path = [&](int nic) {
        return path_class(machine_, machine_.gpus[tower.gpu].place, machine_.nics[nic].place);
      };
      EXPECT_EQ(tower.path, path(tower.nic));
      for (const int other : fast) {
        if (machine_.nics[other].rdma != rdma) continue;
        EXPECT_GE(path(other), path(tower.nic)) << machine_.nics[other].name << " is nearer";
        if (path(other) != path(tower.nic)) continue;
        EXPECT_GE(gbit(tower.nic), gbit(other)) << machine_.nics[other].name << " is faster";
        if (gbit(tower.nic) != gbit(other)) continue;
        EXPECT_TRUE(active(tower.nic) || !active(other));
        if (active(other) != active(tower.nic)) continue;
        EXPECT_LE(load[card(tower.nic)], load[card(other)] + 1) << machine_.nics[other].name << " serves fewer";
      }
    }
  }

  void everything_has_a_reason() {
    for (const TowerPlace& tower : placement_.towers) {
      check_decisions(tower.decisions, {"GPU", "NIC", "cores", "memory"});
      EXPECT_EQ(tower.decisions[0].rejected.size(), machine_.gpus.size() - (tower.gpu >= 0));
      EXPECT_EQ(tower.decisions[1].rejected.size(), machine_.nics.size() - (tower.nic >= 0));
      EXPECT_TRUE(tower.numa_node < 0 || machine_.numa_nodes[tower.numa_node].allowed);
    }
    for (const ShardPlace& shard : placement_.shards) {
      check_decisions(shard.decisions, {"NIC", "cores"});
      EXPECT_EQ(shard.decisions[0].rejected.size(), machine_.nics.size() - (shard.nic >= 0));
    }
    EXPECT_FALSE(placement_.wait_reason.empty());
  }

 private:
  struct Usable {
    CpuSet cpus;
    int numa_node, package;
  };

  static bool named(const std::vector<std::string>& words, const std::string& name) {
    return std::find(words.begin(), words.end(), name) != words.end();
  }

  /// Cores of this node (-2: of any node).
  bool idle_core(int numa_node) const {
    return std::any_of(cores_.begin(), cores_.end(), [&](const Usable& core) {
      return (numa_node == -2 || core.numa_node == numa_node) && !core.cpus.intersects(busy_);
    });
  }

  void check_near(int numa_node, const CpuSet& cpus) {
    if (numa_node < 0 || !idle_core(numa_node)) return;
    EXPECT_TRUE(machine_.numa_nodes[numa_node].cpus.includes(cpus))
        << cpus.to_string() << " is used, while cores of node " << numa_node << " idle";
  }

  bool active(int nic) const { return machine_.nics[nic].ports[0].state == PortState::active; }
  double gbit(int nic) const { return machine_.nics[nic].ports[0].gbit_per_s; }
  int card(int nic) const { return machine_.nics[nic].place.address.bus; }

  void check_kind(int nic, const std::vector<int>& usable, bool rdma) {
    EXPECT_EQ(nic < 0, usable.empty());
    if (nic < 0) return;
    EXPECT_NE(std::find(usable.begin(), usable.end(), nic), usable.end());
    EXPECT_EQ(machine_.nics[nic].rdma, rdma);
  }

  void check_decisions(const std::vector<Decision>& decisions, const std::vector<std::string>& kinds) {
    std::vector<std::string> found;
    for (const Decision& decision : decisions) {
      found.push_back(decision.what);
      EXPECT_FALSE(decision.chosen.empty()) << decision.what;
      EXPECT_FALSE(decision.reason.empty()) << decision.what;
      for (const Rejected& rejected : decision.rejected) {
        EXPECT_FALSE(rejected.name.empty()) << decision.what;
        EXPECT_FALSE(rejected.reason.empty()) << decision.what << " " << rejected.name;
      }
    }
    EXPECT_EQ(found, kinds);
  }

  const Machine& machine_;
  const Request& request_;
  const Placement& placement_;
  std::vector<Usable> cores_;
  CpuSet usable_, busy_, feeds_gpu_;
  std::vector<CpuSet> sets_;  ///< one for each busy thread, or group of compute threads
};

/// More towers asked for than NVIDIA GPUs that may be used.
bool wants_too_many_gpus(const RandomCase& random) {
  size_t gpus = random.request.gpus.size();
  if (gpus == 0) {
    for (const Gpu& gpu : random.machine.gpus) gpus += gpu.vendor == Vendor::nvidia;
  }
  size_t towers = 0;
  for (const ProcessRequest& process : random.request.processes)
    if (process.job == Job::worker) towers += std::max(process.units, 1);
  return random.request.towers == Towers::gpu && towers > gpus;
}

void check(uint64_t seed) {
  const RandomCase random = random_case(seed);
  const absl::StatusOr<Placement> placement = plan(random.machine, random.request);
  EXPECT_EQ(!placement.ok(), wants_too_many_gpus(random)) << placement.status();
  if (!placement.ok()) return;
  Promise promise(random, *placement);
  promise.all_units_are_placed();
  promise.no_sharing_while_there_is_room();
  promise.cores_are_shared_evenly();
  promise.no_far_thread_while_near_cores_idle();
  promise.gpus_are_ours_and_given_once();
  promise.nics_are_nearest_and_spread();
  promise.everything_has_a_reason();

  Request reordered = random.request;
  std::reverse(reordered.processes.begin(), reordered.processes.end());
  const absl::StatusOr<Placement> again = plan(random.machine, reordered);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(dump(*placement), dump(*again)) << "same host, another plan";
}

/// Ten thousand machines in blocks, each of which ends within its limit under a sanitizer.
class PlanProperty : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Block, PlanProperty, ::testing::Range(uint64_t{0}, uint64_t{10}));

TEST_P(PlanProperty, HoldsForRandomMachines) {
  constexpr uint64_t kMachines = 1'000;
  const uint64_t first_seed = 1 + GetParam() * kMachines;
  int failed = 0;
  for (uint64_t seed = first_seed; seed < first_seed + kMachines && failed < 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int before = ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
    check(seed);
    failed += ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count() > before;
  }
}

}  // namespace
}  // namespace gradrail::topology
