#include "topology/plan/plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/topology/machine_builder.h"

namespace gradrail::topology {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Placement placed(const Machine& machine, const Request& request) {
  absl::StatusOr<Placement> placement = plan(machine, request);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *std::move(placement) : Placement();
}

Request workers(int count, int units = 0) {
  Request request;
  for (int task = 0; task < count; ++task) request.processes.push_back({Job::worker, task, units});
  return request;
}

std::vector<int> nics_of(const Placement& placement) {
  std::vector<int> nics;
  for (const TowerPlace& tower : placement.towers) nics.push_back(tower.nic);
  return nics;
}

TEST(Plan, PortsOfOneCardComeAfterOtherCards) {
  MachineBuilder builder({.cores_per_node = 16});
  const int root = builder.root(0, 0);
  for (int i = 0; i < 3; ++i) builder.gpu(builder.bridge(root));
  builder.nic(builder.bridge(root));
  builder.nic_port();
  builder.nic(builder.bridge(root));
  EXPECT_EQ(nics_of(placed(builder.machine(), workers(1))), (std::vector<int>{0, 2, 1}));
}

TEST(Plan, EquallyNearNicsThatOverlapAreStillShared) {
  MachineBuilder builder({.cores_per_node = 16});
  const int upstream = builder.bridge(builder.bridge(builder.root(0, 0)));
  const int middle = builder.bridge(upstream), left = builder.bridge(upstream), right = builder.bridge(middle);
  builder.nic(middle);  // one switch with either side, which are further from each other
  builder.nic(left);
  builder.nic(right);
  builder.gpu(left);
  builder.gpu(right);
  builder.gpu(right);
  EXPECT_EQ(nics_of(placed(builder.machine(), workers(1))), (std::vector<int>{1, 2, 0}));
}

TEST(Plan, NicThatIsDownOrPlainComesLast) {
  MachineBuilder builder({.cores_per_node = 4});
  const int root = builder.root(0, 0);
  const int port = builder.bridge(root);
  builder.gpu(port);
  const int down = builder.nic(port, true, PortState::down);
  builder.nic(port, false);
  const int rdma = builder.nic(builder.bridge(root), true, PortState::unknown);
  const Placement placement = placed(builder.machine(), workers(1));
  EXPECT_EQ(placement.towers[0].nic, rdma);
  const Decision& nic = placement.towers[0].decisions[1];
  EXPECT_THAT(nic.rejected[down].reason, HasSubstr("port 1 is down"));
  EXPECT_THAT(nic.rejected[1].reason, HasSubstr("plain Ethernet"));
}

TEST(Plan, NoNicOrNoneThatWillDo) {
  MachineBuilder builder({.cores_per_node = 4});
  EXPECT_THAT(placed(builder.machine(), workers(1)).towers[0].decisions[1].reason, HasSubstr("shared memory"));
  builder.nic(builder.root(0, 0), true, PortState::down);
  builder.nic(builder.root(0, 0), false);
  Request request = workers(1);
  EXPECT_EQ(placed(builder.machine(), request).towers[0].nic, 1);
  request.rdma_only = true;
  const Placement placement = placed(builder.machine(), request);
  EXPECT_EQ(placement.towers[0].nic, -1);
  EXPECT_THAT(placement.notes, Contains(HasSubstr("NIC mlx5_0 is not used: port 1 is down")));
  EXPECT_THAT(placement.notes, Contains(HasSubstr("no NIC can be used")));
}

/// Four fast ports and a slow one, all below one root. None carries RDMA, and files have no rates of ports.
MachineBuilder slingshot() {
  MachineBuilder builder({.cores_per_node = 64});
  const int root = builder.root(0, 0);
  for (const double gbyte_per_s : {0.25, 31.5, 31.507692, 31.5, 31.5}) {
    builder.nic(builder.bridge(root), false, PortState::unknown);
    builder.machine().nics.back().ports[0].gbit_per_s = 0;
    builder.machine().nics.back().pci_gbyte_per_s = gbyte_per_s;
  }
  return builder;
}

TEST(Plan, ASlowPortIsALastResort) {
  Request request = workers(4);
  request.processes.push_back({Job::ps, 0, 16});
  const Placement placement = placed(slingshot().machine(), request);
  std::vector<int> towers(5), shards(5);
  for (const TowerPlace& tower : placement.towers) ++towers[tower.nic];
  for (const ShardPlace& shard : placement.shards) ++shards[shard.nic];
  EXPECT_EQ(towers, (std::vector<int>{0, 1, 1, 1, 1}));
  EXPECT_EQ(shards, (std::vector<int>{0, 4, 4, 4, 4}));
  const std::string reason = "a last resort: 2 Gb/s, an order of magnitude less than the 252 Gb/s of eth";
  EXPECT_THAT(placement.towers[0].decisions[1].rejected[0].reason, HasSubstr(reason));
  EXPECT_THAT(placement.shards[0].decisions[0].rejected[0].reason, HasSubstr(reason));
}

TEST(Plan, BandwidthIsTheSmallerOneOfPortAndPciLink) {
  MachineBuilder builder({.cores_per_node = 16});
  const int root = builder.root(0, 0);
  for (const auto& [port, pci] : {std::pair(200.0, 7.9), std::pair(100.0, 15.75), std::pair(40.0, 31.5)}) {
    builder.nic(builder.bridge(root));
    builder.machine().nics.back().ports[0].gbit_per_s = port;
    builder.machine().nics.back().pci_gbyte_per_s = pci;
  }
  const Placement placement = placed(builder.machine(), workers(2));
  EXPECT_EQ(nics_of(placement), (std::vector<int>{1, 1})) << "bandwidth before load";
  EXPECT_THAT(placement.towers[0].decisions[1].rejected[0].reason, HasSubstr("slower: 63 Gb/s; mlx5_1 has 100 Gb/s"));
}

TEST(Plan, TheReasonForANicCountsOtherTowersOnly) {
  MachineBuilder builder({.cores_per_node = 16});
  const int root = builder.root(0, 0);
  for (int i = 0; i < 3; ++i) builder.gpu(builder.bridge(root));
  for (int i = 0; i < 2; ++i) builder.nic(builder.bridge(root));
  const Placement placement = placed(builder.machine(), workers(1));
  ASSERT_EQ(nics_of(placement), (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(placement.towers[1].decisions[1].rejected[0].reason,
            "as near, and its card serves 2 of the other towers; that of mlx5_1 serves 0");
  EXPECT_EQ(placement.towers[2].decisions[1].rejected[0].reason,
            "as near as mlx5_0, which serves as many of the other towers");
}

TEST(Plan, GpusAreDealtInOrder) {
  MachineBuilder builder({.cores_per_node = 16});
  const int root = builder.root(0, 0);
  for (int i = 0; i < 4; ++i) builder.gpu(root);
  const Placement three = placed(builder.machine(), workers(3));
  EXPECT_EQ(towers_of(three, 0).size(), 2U);
  EXPECT_EQ(towers_of(three, 1).size(), 1U);
  EXPECT_EQ(towers_of(three, 2)[0].gpu, 3);
  const Placement five = placed(builder.machine(), workers(5));
  EXPECT_EQ(towers_of(five, 4)[0].gpu, -1);
  ASSERT_EQ(five.notes.size(), 1U);
  EXPECT_THAT(five.notes[0], HasSubstr("1 of 5 towers on the CPU: there is a GPU for 4"));
  Request chosen = workers(1);
  chosen.gpus = {"gpu3", "0000:01:00.0", "1"};
  const Placement picked = placed(builder.machine(), chosen);
  ASSERT_EQ(picked.towers.size(), 3U);
  EXPECT_EQ(picked.towers[0].gpu, 3);
  EXPECT_EQ(picked.towers[1].gpu, 0);
  EXPECT_EQ(picked.towers[2].gpu, 1);
}

TEST(Plan, AGpuNamedAgainIsShared) {
  MachineBuilder builder({.cores_per_node = 16});
  builder.gpu(builder.root(0, 0));
  Request twice = workers(2);
  twice.gpus = {"0", "gpu0"};
  const Placement placement = placed(builder.machine(), twice);
  ASSERT_EQ(placement.towers.size(), 2U);
  EXPECT_EQ(towers_of(placement, 0)[0].gpu, 0);
  EXPECT_EQ(towers_of(placement, 1)[0].gpu, 0);
  EXPECT_THAT(placement.towers[1].decisions[0].reason, HasSubstr("2 towers share it"));
  EXPECT_THAT(placement.notes, IsEmpty());
}

TEST(Plan, GpusOfOthersAreRejectedByName) {
  MachineBuilder builder({.cores_per_node = 4});
  builder.gpu(builder.root(0, 0), Vendor::amd);
  const Placement placement = placed(builder.machine(), workers(1));
  EXPECT_EQ(placement.towers[0].gpu, -1);
  EXPECT_EQ(placement.towers[0].decisions[0].rejected[0].reason,
            "there is no code for AMD GPUs (ROCm is not supported)");
  EXPECT_THAT(placement.notes,
              Contains("GPUs are not used: gpu0: there is no code for AMD GPUs (ROCm is not supported)"));
}

}  // namespace
}  // namespace gradrail::topology
