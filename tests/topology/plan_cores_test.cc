#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/topology/machine_builder.h"
#include "topology/plan/plan.h"

namespace gradrail::topology {
namespace {

using ::testing::HasSubstr;

Placement placed(const Machine& machine, const Request& request) {
  absl::StatusOr<Placement> placement = plan(machine, request);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *std::move(placement) : Placement();
}

Request host(int servers, int worker_count, int shards = 1) {
  Request request;
  for (int task = 0; task < servers; ++task) request.processes.push_back({Job::ps, task, shards});
  for (int task = 0; task < worker_count; ++task) request.processes.push_back({Job::worker, task, 0});
  return request;
}

CpuSet range_of(int first, int count) {
  CpuSet cpus;
  for (int cpu = first; cpu < first + count; ++cpu) cpus.insert(cpu);
  return cpus;
}

TEST(PlanCores, FourProcessesOnTwoCoresShareThemAndAdapt) {
  const Placement placement = placed(MachineBuilder({.cores_per_node = 2}).machine(), host(1, 3));
  EXPECT_TRUE(placement.oversubscribed);
  EXPECT_EQ(placement.wait, SpinMode::adapt);
  EXPECT_THAT(placement.wait_reason, HasSubstr("7 busy threads share 2 cpus"));
  for (const TowerPlace& tower : placement.towers) {
    EXPECT_EQ(tower.compute, (CpuSet{0, 1}));
    EXPECT_EQ(tower.progress, (CpuSet{0, 1}));
    EXPECT_EQ(tower.numa_node, 0);
  }
  EXPECT_EQ(placement.shards[0].cpus, (CpuSet{0, 1}));
}

TEST(PlanCores, CrowdedProcessesStayWithinANodeWhereThatIsAsFair) {
  const MachineBuilder::Numbering adjacent = MachineBuilder::Numbering::siblings_adjacent;
  Machine machine = MachineBuilder({.packages = 2, .cores_per_node = 2}, adjacent).machine();
  const Placement even = placed(machine, host(0, 4));
  EXPECT_EQ(even.towers[0].compute.count(), 2);
  EXPECT_EQ(even.towers[0].compute, even.towers[2].compute);
  EXPECT_NE(even.towers[0].compute, even.towers[1].compute);
  EXPECT_EQ(placed(machine, host(0, 3)).towers[0].compute.count(), 4) << "three on two nodes: one would be full";
}

TEST(PlanCores, SiblingsComeLastAndNoThreadSpinsBesideOne) {
  const Machine machine = MachineBuilder({.cores_per_node = 4, .smt = 2}).machine();
  const Placement room = placed(machine, host(0, 2));
  EXPECT_EQ(room.wait, SpinMode::spin);
  for (const TowerPlace& tower : room.towers) EXPECT_LT(tower.compute.to_vector().back(), 4);
  const Placement full = placed(machine, host(2, 2));
  EXPECT_EQ(full.wait, SpinMode::adapt);
  EXPECT_FALSE(full.oversubscribed);
  EXPECT_THAT(full.wait_reason, HasSubstr("6 busy threads on 4 cores use 2 hardware siblings"));
  for (const TowerPlace& tower : full.towers) {
    EXPECT_EQ(tower.progress.first(), tower.compute.first() + 4) << "beside its own compute thread";
    EXPECT_THAT(tower.decisions[2].reason, HasSubstr("sibling"));
  }
}

TEST(PlanCores, NoNumaNodes) {
  MachineBuilder builder({.packages = 1, .nodes_per_package = 0, .cores_per_node = 8});
  builder.gpu(builder.root(0, -1));
  builder.nic(builder.root(0, -1));
  const Placement placement = placed(builder.machine(), host(1, 1));
  EXPECT_EQ(placement.towers[0].compute.count(), 6);
  EXPECT_EQ(placement.towers[0].numa_node, -1);
  EXPECT_EQ(placement.towers[0].decisions[3].chosen, "anywhere");
  EXPECT_EQ(placement.shards[0].cpus, CpuSet{7}) << "away from the tower";
}

TEST(PlanCores, CpusetHidesHalfTheMachine) {
  MachineBuilder builder({.packages = 2, .cores_per_node = 4});
  builder.gpu(builder.root(0, 0));
  builder.close({0, 1, 2, 3});
  const Placement placement = placed(builder.machine(), host(0, 1));
  EXPECT_EQ(placement.towers[0].compute, (CpuSet{4, 5, 6}));
  EXPECT_EQ(placement.towers[0].progress, CpuSet{7});
  const std::vector<Rejected>& rejected = placement.towers[0].decisions[2].rejected;
  ASSERT_FALSE(rejected.empty());
  EXPECT_EQ(rejected[0].name, "cpus 0-3");
  EXPECT_THAT(rejected[0].reason, HasSubstr("closed"));
}

TEST(PlanCores, PowerWithGapsAndMemoryWithoutCpus) {
  MachineBuilder builder({.packages = 2, .cores_per_node = 4, .smt = 4, .cpu_stride = 2},
                         MachineBuilder::Numbering::siblings_adjacent);
  builder.memory_node(0);
  builder.gpu(builder.root(0, 0));
  builder.gpu(builder.root(1, 1));
  const Placement placement = placed(builder.machine(), host(0, 2));
  EXPECT_EQ(placement.towers[0].compute, (CpuSet{0, 8, 16}));
  EXPECT_EQ(placement.towers[1].compute, (CpuSet{32, 40, 48}));
  EXPECT_EQ(placement.towers[1].progress, CpuSet{56});
  EXPECT_EQ(placement.towers[1].decisions[3].rejected[1].reason, "has no cpus");
}

TEST(PlanCores, PackagesOfUnequalSize) {
  MachineBuilder builder({.cores_per_node = 2});
  builder.package(6);
  const Placement placement = placed(builder.machine(), host(0, 4));  // four pairs for eight cores
  std::vector<int> on_node(2);
  for (const TowerPlace& tower : placement.towers) ++on_node[tower.numa_node];
  EXPECT_EQ(on_node, (std::vector<int>{1, 3}));
  EXPECT_EQ(placement.wait, SpinMode::spin);
}

TEST(PlanCores, FastCoresComputeAndSlowOnesMakeProgress) {
  MachineBuilder builder({.cores_per_node = 6});
  for (const int slow : {0, 1, 2}) builder.machine().cores[slow].efficiency = 0;
  for (const int fast : {3, 4, 5}) builder.machine().cores[fast].efficiency = 1;
  Request request = host(1, 2);
  request.cores_per_tower = 1;
  const Placement placement = placed(builder.machine(), request);
  EXPECT_EQ(placement.towers[0].compute, CpuSet{3});
  EXPECT_EQ(placement.towers[1].compute, CpuSet{4});
  EXPECT_EQ(placement.shards[0].cpus, CpuSet{5});
  EXPECT_LT(placement.towers[0].progress.first(), 3);
}

TEST(PlanCores, AFixedNumberOrWhatThereIs) {
  const Machine machine = MachineBuilder({.cores_per_node = 8}).machine();
  Request request = host(0, 2);
  request.cores_per_tower = 2;
  EXPECT_EQ(placed(machine, request).towers[1].compute, (CpuSet{3, 4}));
  request.cores_per_tower = 5;
  const Placement less = placed(machine, request);
  EXPECT_EQ(less.towers[0].compute.count(), 3);
  ASSERT_FALSE(less.notes.empty());
  EXPECT_THAT(less.notes.back(), HasSubstr("fewer than the 5 cores asked for"));
  request.progress_threads = false;
  request.cores = CpuSet{2, 4, 6, 7};
  request.reserved = {7};
  request.cores_per_tower = 0;
  const Placement few = placed(machine, request);
  EXPECT_EQ(few.towers[0].compute, (CpuSet{2, 4}));
  EXPECT_EQ(few.towers[1].compute, CpuSet{6});
  EXPECT_TRUE(few.towers[0].progress.empty());
}

TEST(PlanCores, ShardsGoOverTheNicsAwayFromTowers) {
  MachineBuilder builder({.packages = 2, .cores_per_node = 8});
  builder.gpu(builder.root(0, 0));
  builder.nic(builder.root(0, 0));
  builder.nic(builder.root(1, 1));
  const Placement placement = placed(builder.machine(), host(1, 1));
  EXPECT_EQ(placement.shards[0].nic, 1) << "the NIC that feeds no tower";
  EXPECT_EQ(placement.shards[0].numa_node, 1);
  std::vector<int> fed(2);
  for (const ShardPlace& shard : placed(builder.machine(), host(2, 1, 2)).shards) ++fed[shard.nic];
  EXPECT_EQ(fed, (std::vector<int>{2, 2}));
}

TEST(PlanCores, TheReasonForAnotherPortOfACardNamesThePorts) {
  MachineBuilder builder({.cores_per_node = 8});
  builder.nic(builder.root(0, 0));
  builder.nic_port();
  const Placement placement = placed(builder.machine(), host(2, 0));
  EXPECT_EQ(placement.shards[0].nic, 0);
  EXPECT_EQ(placement.shards[1].nic, 1);
  const std::string& winner = builder.machine().nics[1].name;
  EXPECT_EQ(placement.shards[1].decisions[0].rejected[0].reason, "feeds 1 of the shards already; " + winner + " fed 0");
}

TEST(PlanCores, TheReasonForAnotherCardNamesTheCards) {
  MachineBuilder builder({.cores_per_node = 8});
  for (int i = 0; i < 2; ++i) builder.nic(builder.root(0, 0));
  const Placement placement = placed(builder.machine(), host(2, 0));
  EXPECT_EQ(placement.shards[1].nic, 1);
  EXPECT_THAT(placement.shards[1].decisions[0].rejected[0].reason, HasSubstr("its card feeds 1 of the shards already"));
}

TEST(PlanCores, ShardsGoOverThePackagesWhereNicsAreAlike) {
  MachineBuilder builder({.packages = 2, .cores_per_node = 8});
  for (const int package : {0, 0, 1, 1}) builder.nic(builder.root(package, package));
  const Placement placement = placed(builder.machine(), host(2, 0));
  EXPECT_EQ(placement.shards[0].nic, 0);
  EXPECT_EQ(placement.shards[1].nic, 2);
  EXPECT_THAT(placement.shards[1].decisions[0].rejected[1].reason, HasSubstr("in its package already"));
}

TEST(PlanCores, ThreadsThatWorkNowAndThenNeedACpuToo) {
  MachineBuilder builder({.packages = 1, .cores_per_node = 2});
  Request request = host(1, 1);
  request.progress_threads = false;
  EXPECT_EQ(placed(builder.machine(), request).wait, SpinMode::spin);
  request.other_threads = 1;
  const Placement placement = placed(builder.machine(), request);
  EXPECT_TRUE(placement.oversubscribed);
  EXPECT_EQ(placement.wait, SpinMode::adapt);
  EXPECT_THAT(placement.wait_reason, HasSubstr("1 busy now and then"));
  EXPECT_EQ(placement.towers[0].compute, placement.shards[0].cpus);
}

TEST(PlanCores, ATowerThatOutgrowsItsNodeStaysWithOneNeighbour) {
  MachineBuilder builder({.packages = 1, .nodes_per_package = 4, .cores_per_node = 4});
  builder.gpu(builder.root(0, 3));
  builder.gpu(builder.root(0, 1));
  Request request = host(0, 2);
  const Placement near = placed(builder.machine(), request);
  EXPECT_EQ((near.towers[0].compute | near.towers[0].progress).to_string(), "12-15");
  EXPECT_EQ((near.towers[1].compute | near.towers[1].progress).to_string(), "4-7");
  request.cores_per_tower = 7;
  const Placement placement = placed(builder.machine(), request);
  EXPECT_EQ((placement.towers[0].compute | placement.towers[0].progress).to_string(), "8-15");
  EXPECT_EQ((placement.towers[1].compute | placement.towers[1].progress).to_string(), "0-7");
  EXPECT_EQ(placement.towers[0].numa_node, 3);
}

/// Two packages, with so many GPUs and a NIC each.
MachineBuilder two_packages(int cores, int gpus, int smt = 1) {
  MachineBuilder builder({.packages = 2, .cores_per_node = cores, .smt = smt});
  for (const int package : {0, 1}) {
    const int root = builder.root(package, package);
    for (int i = 0; i < gpus; ++i) builder.gpu(builder.bridge(root));
    builder.nic(builder.bridge(root));
  }
  return builder;
}

void expect_near_gpus(const Machine& machine, const Placement& placement) {
  for (const TowerPlace& tower : placement.towers) {
    if (tower.gpu < 0) continue;
    const int node = machine.gpus[tower.gpu].place.numa_node;
    EXPECT_TRUE(machine.numa_nodes[node].cpus.includes(tower.compute | tower.progress))
        << "worker " << tower.task_index << ": " << tower.compute.to_string();
    EXPECT_EQ(tower.numa_node, node);
    EXPECT_THAT(tower.decisions[2].reason, HasSubstr(": beside gpu"));
  }
}

TEST(PlanCores, FewCoresAreSharedBesideTheGpus) {
  const Machine eight = two_packages(24, 4).machine();
  Request request = host(1, 8);
  request.other_threads = kRestOfTheHost;
  request.cores = range_of(0, 8) | range_of(24, 8);
  const Placement few = placed(eight, request);
  EXPECT_TRUE(few.oversubscribed);
  expect_near_gpus(eight, few);

  const Placement many = placed(eight, host(1, 64));
  EXPECT_TRUE(many.oversubscribed);
  expect_near_gpus(eight, many);
  std::vector<int> beside(2);
  for (const TowerPlace& tower : many.towers) ++beside[tower.compute.first() / 24];
  EXPECT_EQ(beside, (std::vector<int>{32, 32}));

  const Machine four = two_packages(20, 2).machine();
  request = host(1, 4);
  request.other_threads = kRestOfTheHost;
  request.cores = range_of(0, 4) | range_of(20, 4);
  expect_near_gpus(four, placed(four, request));
}

TEST(PlanCores, WithoutACoreOnTheNodeOfAGpuItsPackageIsNext) {
  MachineBuilder builder({.packages = 2, .nodes_per_package = 2, .cores_per_node = 4});
  for (int i = 0; i < 2; ++i) builder.gpu(builder.root(1, 2));
  Request request = host(0, 2);
  request.cores = CpuSet{0, 1, 12, 13};  // node 0, and the other node of the package
  request.other_threads = 1;
  const Placement crowded = placed(builder.machine(), request);
  EXPECT_TRUE(crowded.oversubscribed);
  for (const TowerPlace& tower : crowded.towers) EXPECT_EQ(tower.compute, (CpuSet{12, 13}));
  request.cores = range_of(0, 4) | range_of(12, 4);
  const Placement roomy = placed(builder.machine(), request);
  EXPECT_FALSE(roomy.oversubscribed);
  for (const TowerPlace& tower : roomy.towers) EXPECT_GE((tower.compute | tower.progress).first(), 12);
  EXPECT_THAT(roomy.towers[0].decisions[2].reason, HasSubstr("in the package of gpu0; its own node had none left"));
}

TEST(PlanCores, AFullNodeBesideAnIdleOneIsLeft) {
  MachineBuilder builder({.packages = 2, .cores_per_node = 4});
  for (int i = 0; i < 4; ++i) builder.gpu(builder.root(0, 0));
  Request request = host(0, 4);
  request.cores = CpuSet{0, 4, 5, 6};  // eight threads on one cpu, while three idle
  EXPECT_EQ(placed(builder.machine(), request).towers[0].compute, (CpuSet{0, 4, 5, 6}));
}

TEST(PlanCores, ShardsDoNotSendThreadsOfGpusToTheOtherPackage) {
  const Machine machine = two_packages(2, 1, 2).machine();
  Request request = host(1, 2, 2);
  request.processes[0].units = 2;
  const Placement beside = placed(machine, request);
  expect_near_gpus(machine, beside);
  request.cores = CpuSet{0, 2, 3, 4, 6, 7};  // of package 0 one core and its sibling
  const Placement placement = placed(machine, request);
  EXPECT_FALSE(placement.oversubscribed);
  EXPECT_EQ(placement.wait, SpinMode::adapt);
  EXPECT_EQ(placement.towers[0].compute, CpuSet{0});
  EXPECT_EQ(placement.towers[0].progress, CpuSet{4}) << "its own sibling, and not the other package";
}

TEST(PlanCores, CpuTowersStayInOnePackageAndTheirNicFollows) {
  MachineBuilder builder({.packages = 2, .nodes_per_package = 4, .cores_per_node = 6});
  builder.nic(builder.root(0, 1));
  builder.nic(builder.root(1, 5));
  Request request = host(0, 6);
  request.progress_threads = false;
  const Placement placement = placed(builder.machine(), request);
  std::vector<std::string> cpus;
  for (const TowerPlace& tower : placement.towers) {
    cpus.push_back(tower.compute.to_string());
    const int package = tower.compute.first() / 24;
    EXPECT_EQ(tower.nic, package);
    EXPECT_EQ(tower.numa_node / 4, package);
  }
  EXPECT_THAT(cpus, ::testing::ElementsAre("0-7", "8-15", "16-23", "24-31", "32-39", "40-47"));
  request.progress_threads = true;
  for (const TowerPlace& tower : placed(builder.machine(), request).towers)
    EXPECT_EQ(tower.progress.first() / 6, tower.numa_node) << "on the node of its memory";
}

TEST(PlanCores, CpuTowersThatFitIntoANodeDoNotCrossNodes) {
  const Machine machine = MachineBuilder({.packages = 2, .nodes_per_package = 2, .cores_per_node = 5}).machine();
  Request request = host(0, 8);
  request.progress_threads = false;
  for (const TowerPlace& tower : placed(machine, request).towers)
    EXPECT_EQ(tower.compute.first() / 5, tower.compute.to_vector().back() / 5) << tower.compute.to_string();
  request = host(0, 2);
  request.cores_per_tower = 3;
  const Placement two = placed(machine, request);
  EXPECT_EQ(two.towers[0].numa_node, 0);
  EXPECT_EQ(two.towers[1].numa_node, 2) << "on the other package";
}

}  // namespace
}  // namespace gradrail::topology
