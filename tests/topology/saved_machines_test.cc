#include "tests/topology/saved_machines.h"

#include <map>

#include "gtest/gtest.h"
#include "topology/discover/discover.h"
#include "topology/plan/plan.h"

namespace gradrail::topology {
namespace {

// Every number below was read from `lstopo-no-graphics -i FILE --of console --whole-io` and from the file by eye.

class SavedMachines : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::is_directory(saved_machines_folder()))
      GTEST_SKIP() << "no saved machines in " << saved_machines_folder() << " (GRADRAIL_TOPOLOGIES names their folder)";
  }

  static Machine machine(const std::string& name) {
    const absl::StatusOr<Machine> loaded = load((saved_machines_folder() / name).string());
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *loaded : Machine{};
  }
};

const Nic* find_nic(const Machine& machine, const std::string& name) {
  for (const Nic& nic : machine.nics)
    if (nic.name == name) return &nic;
  return nullptr;
}

struct ExpectedGpu {
  std::string name, address;
  int numa_node;
  std::string cpus;
  std::string nearest;  ///< RDMA device
  PathClass path;
};

void expect_gpus(const Machine& machine, const std::vector<ExpectedGpu>& expected) {
  ASSERT_EQ(machine.gpus.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(expected[i].address);
    const Gpu& gpu = machine.gpus[i];
    EXPECT_EQ(gpu.index, static_cast<int>(i));
    EXPECT_EQ(gpu.name, expected[i].name);
    EXPECT_EQ(gpu.vendor, Vendor::nvidia);
    EXPECT_EQ(gpu.place.address.to_string(), expected[i].address);
    EXPECT_EQ(gpu.place.numa_node, expected[i].numa_node);
    EXPECT_EQ(gpu.place.cpus.to_string(), expected[i].cpus);
    const Nic* nearest = find_nic(machine, expected[i].nearest);
    ASSERT_NE(nearest, nullptr);
    EXPECT_EQ(path_class(machine, gpu.place, nearest->place), expected[i].path);
    for (const Nic& nic : machine.nics) {
      if (nic.rdma) {
        EXPECT_GE(path_class(machine, gpu.place, nic.place), expected[i].path) << nic.name << " is nearer";
      }
    }
  }
}

struct ExpectedNic {
  std::string name, interface, address;
  int numa_node;
  bool infiniband, usable;
};

void expect_nics(const Machine& machine, const std::vector<ExpectedNic>& expected) {
  ASSERT_EQ(machine.nics.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(expected[i].name);
    const Nic& nic = machine.nics[i];
    EXPECT_EQ(nic.name, expected[i].name);
    EXPECT_EQ(nic.interface, expected[i].interface);
    EXPECT_EQ(nic.place.address.to_string(), expected[i].address);
    EXPECT_EQ(nic.place.numa_node, expected[i].numa_node);
    EXPECT_EQ(nic.rdma, expected[i].infiniband);
    EXPECT_EQ(nic.infiniband, expected[i].infiniband);
    EXPECT_EQ(nic.usable(), expected[i].usable);
    EXPECT_EQ(nic.ports.size(), 1u);
  }
}

void expect_cores(const Machine& machine, size_t packages, size_t numa_nodes, size_t cores, size_t siblings) {
  EXPECT_EQ(machine.packages.size(), packages);
  EXPECT_EQ(machine.numa_nodes.size(), numa_nodes);
  EXPECT_EQ(machine.cores.size(), cores);
  for (const Core& core : machine.cores) {
    EXPECT_EQ(core.cpus.size(), siblings);
    EXPECT_EQ(core.allowed, core.cpus);
    EXPECT_GE(core.numa_node, 0);
    EXPECT_GE(core.package, 0);
  }
  EXPECT_FALSE(machine.live);
}

TEST_F(SavedMachines, JuwelsBoosterGivesEachGpuItsOwnHca) {
  const Machine booster = machine("jwb0001.xml");
  EXPECT_EQ(booster.name, "jwb0001.juwels");
  expect_cores(booster, 2, 8, 48, 2);
  expect_gpus(booster, {{"gpu0", "0000:03:00.0", 3, "18-23,66-71", "mlx5_1", PathClass::same_switch},
                        {"gpu1", "0000:44:00.0", 1, "6-11,54-59", "mlx5_0", PathClass::same_switch},
                        {"gpu2", "0000:84:00.0", 7, "42-47,90-95", "mlx5_3", PathClass::same_switch},
                        {"gpu3", "0000:c4:00.0", 5, "30-35,78-83", "mlx5_2", PathClass::same_switch}});
  expect_nics(booster, {{"mlx5_1", "ib1", "0000:04:00.0", 3, true, true},
                        {"mlx5_0", "ib0", "0000:43:00.0", 1, true, true},
                        {"mlx5_3", "ib3", "0000:83:00.0", 7, true, true},
                        {"mlx5_2", "ib2", "0000:c3:00.0", 5, true, true},
                        {"enp225s0f0", "enp225s0f0", "0000:e1:00.0", 4, false, true},
                        {"enp225s0f1", "enp225s0f1", "0000:e1:00.1", 4, false, true}});
  EXPECT_EQ(booster.cores[3].cpus, (std::vector<int>{3, 51}));
}

/// Its host bridges belong to the whole machine: only the PCI tree states which devices are near each other.
TEST_F(SavedMachines, Juropa3RecordsNoLocality) {
  const Machine juropa = machine("j3c053.xml");
  expect_cores(juropa, 2, 2, 16, 2);
  expect_gpus(juropa, {{"gpu0", "0000:01:00.0", -1, "", "mlx4_0", PathClass::same_root},
                       {"gpu1", "0000:82:00.0", -1, "", "mlx4_0", PathClass::unknown}});
  expect_nics(juropa, {{"mlx4_0", "ib0", "0000:02:00.0", -1, true, true},
                       {"enp4s0f0", "enp4s0f0", "0000:04:00.0", -1, false, true},
                       {"enp4s0f1", "enp4s0f1", "0000:04:00.1", -1, false, true}});
}

TEST_F(SavedMachines, LassenIsNumberedByCuda) {
  const Machine lassen = machine("coral-lassen.xml");
  expect_cores(lassen, 2, 2, 40, 4);
  EXPECT_EQ(lassen.allowed.to_string(), "8-87,96-175");
  EXPECT_EQ(lassen.numa_nodes[1].os_index, 8);
  expect_gpus(lassen, {{"cuda0", "0004:04:00.0", 0, "8-87", "mlx5_0", PathClass::same_numa_node},
                       {"cuda1", "0004:05:00.0", 0, "8-87", "mlx5_1", PathClass::same_numa_node},
                       {"cuda2", "0035:03:00.0", 1, "96-175", "mlx5_2", PathClass::same_numa_node},
                       {"cuda3", "0035:04:00.0", 1, "96-175", "mlx5_3", PathClass::same_numa_node}});
  expect_nics(lassen, {{"mlx5_0", "hsi0", "0003:01:00.0", 0, true, true},
                       {"mlx5_1", "hsi1", "0003:01:00.1", 0, true, true},
                       {"enP5p1s0f0", "enP5p1s0f0", "0005:01:00.0", 0, false, true},
                       {"enP5p1s0f1", "enP5p1s0f1", "0005:01:00.1", 0, false, true},
                       {"mlx5_2", "hsi2", "0033:01:00.0", 1, true, true},
                       {"mlx5_3", "hsi3", "0033:01:00.1", 1, true, true}});
  EXPECT_EQ(lassen.gpus[0].model, "Tesla V100-SXM2-16GB");
  EXPECT_EQ(lassen.gpus[0].uuid, "GPU-04732404-7fc3-5ae6-cddd-c879b3a379bb");
}

/// With few cores of each package, as a batch system gives them. No tower leaves a GPU's node that has one of them.
TEST_F(SavedMachines, FewCoresKeepTowersBesideTheirGpus) {
  for (const char* name : {"jwb0001.xml", "jrc0386.xml", "coral-lassen.xml"}) {
    const Machine saved = machine(name);
    for (const int cores_of_a_package : {1, 2, 4, 8}) {
      SCOPED_TRACE(std::string(name) + " with cores of a package: " + std::to_string(cores_of_a_package));
      Request request{.processes = {{Job::ps, 0, 1}}, .other_threads = kRestOfTheHost, .cores = CpuSet()};
      for (int task = 0; task < 4; ++task) request.processes.push_back({Job::worker, task, 0});
      std::vector<int> taken(saved.packages.size());
      for (const Core& core : saved.cores)
        if (taken[core.package]++ < cores_of_a_package) request.cores->insert(core.cpus.front());
      const absl::StatusOr<Placement> placement = plan(saved, request);
      ASSERT_TRUE(placement.ok()) << placement.status();
      for (const TowerPlace& tower : placement->towers) {
        ASSERT_GE(tower.gpu, 0);
        const PciPlace& place = saved.gpus[tower.gpu].place;
        CpuSet package;
        for (const Core& core : saved.cores)
          if (core.package == place.package) package.insert(core.cpus.front());
        const CpuSet near = *request.cores & (place.cpus.intersects(*request.cores) ? place.cpus : package);
        EXPECT_TRUE(tower.compute.intersects(near)) << tower.task_index << ": " << tower.compute.to_string();
        if (placement->oversubscribed || cores_of_a_package > 2) {
          EXPECT_TRUE(package.includes(tower.compute)) << tower.task_index << ": " << tower.compute.to_string();
        }
      }
    }
  }
}

/// NICs of both packages are as fast and as free: the request decides which of them are near.
TEST_F(SavedMachines, CoresOfOnePackageGiveShardsItsNics) {
  const Machine saved = machine("jwb0001.xml");
  for (const int package : {0, 1}) {
    Request request{.processes = {{Job::ps, 0, 4}, {Job::worker, 0, 1}, {Job::worker, 1, 1}},
                    .towers = Towers::cpu,
                    .other_threads = kRestOfTheHost,
                    .cores = CpuSet()};
    // They are on one node, which has no NIC of its own.
    for (const Core& core : saved.cores)
      if (core.package == package && request.cores->count() < 6) request.cores->insert(core.cpus.front());
    const absl::StatusOr<Placement> placement = plan(saved, request);
    ASSERT_TRUE(placement.ok()) << placement.status();
    std::map<int, int> shards;
    for (const ShardPlace& shard : placement->shards) {
      ++shards[shard.nic];
      EXPECT_EQ(saved.nics[shard.nic].place.package, package) << saved.nics[shard.nic].name;
    }
    EXPECT_EQ(shards.size(), 2u) << "both NICs of the package have shards";
  }
}

}  // namespace
}  // namespace gradrail::topology
