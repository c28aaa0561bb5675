#include "topology/discover/live.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "topology/discover/discover.h"

namespace gradrail::topology {
namespace {

/// A folder that looks like the part of /sys we read.
class LiveFacts : public testing::Test {
 protected:
  LiveFacts() : sys_(testing::TempDir() + "sys_" + std::to_string(getpid())) {}
  ~LiveFacts() override { std::filesystem::remove_all(sys_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = std::filesystem::path(sys_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }

  const std::string sys_;
};

TEST_F(LiveFacts, PortsOfAnHca) {
  write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  write("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)");
  write("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
  write("class/infiniband/mlx5_0/ports/2/state", "1: DOWN");
  Machine machine;
  machine.nics = {{.name = "mlx5_0", .rdma = true}};
  add_live_facts(sys_, machine);
  ASSERT_EQ(machine.nics.size(), 1u);
  const Nic& nic = machine.nics[0];
  EXPECT_TRUE(nic.infiniband);
  ASSERT_EQ(nic.ports.size(), 2u);
  EXPECT_EQ(nic.ports[0].state, PortState::active);
  EXPECT_DOUBLE_EQ(nic.ports[0].gbit_per_s, 200);
  EXPECT_EQ(nic.ports[1].state, PortState::down);
}

TEST_F(LiveFacts, SoftRoceIsListedWithoutAPlace) {
  write("class/infiniband/rxe0/parent", "eth0");
  write("class/infiniband/rxe0/ports/1/state", "4: ACTIVE");
  write("class/infiniband/rxe0/ports/1/link_layer", "Ethernet");
  Machine machine;
  machine.bridges = {{.host = true}};
  machine.nics = {{.name = "eth0", .interface = "eth0", .place = {.bridge = 0}}};
  write("class/net/eth0/operstate", "up");
  write("class/net/eth0/speed", "25000");
  add_live_facts(sys_, machine);
  ASSERT_EQ(machine.nics.size(), 2u);
  EXPECT_EQ(machine.nics[0].name, "eth0");
  EXPECT_EQ(machine.nics[0].ports.at(0).state, PortState::active);
  EXPECT_DOUBLE_EQ(machine.nics[0].ports.at(0).gbit_per_s, 25);
  EXPECT_EQ(machine.nics[1].name, "rxe0");
  EXPECT_EQ(machine.nics[1].interface, "eth0");
  EXPECT_TRUE(machine.nics[1].rdma);
  EXPECT_FALSE(machine.nics[1].infiniband);
  EXPECT_EQ(machine.nics[1].place.bridge, -1);
  EXPECT_EQ(machine.nics[1].place.numa_node, -1);
}

TEST_F(LiveFacts, InterfacesWithoutADeviceAreNoCards) {
  write("class/net/lo/operstate", "unknown");
  write("class/net/docker0/operstate", "up");
  write("class/net/wlan0/device/vendor", "x");
  write("class/net/wlan0/wireless/status", "0");
  write("class/net/hv0/device/vendor", "x");
  write("class/net/hv0/operstate", "down");
  write("class/net/hv0/speed", "-1");
  Machine machine;
  add_live_facts(sys_, machine);
  ASSERT_EQ(machine.nics.size(), 1u);
  EXPECT_EQ(machine.nics[0].name, "hv0");
  EXPECT_FALSE(machine.nics[0].usable());
  EXPECT_DOUBLE_EQ(machine.nics[0].ports.at(0).gbit_per_s, 0);
}

TEST(LiveMachine, IsTheOneThatRuns) {
  const absl::StatusOr<Machine> machine = discover();
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_TRUE(machine->live);
  EXPECT_EQ(machine->source, "this machine");
  EXPECT_GE(usable_core_count(*machine), 1);
  EXPECT_TRUE(machine->allowed.contains(sched_getcpu()));
}

TEST(LiveMachine, IsRestrictedToTheProcessesCpus) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  const int cpu = sched_getcpu();
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const absl::StatusOr<Machine> machine = discover();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_EQ(machine->allowed, CpuSet{cpu});
  EXPECT_EQ(usable_core_count(*machine), 1);
}

}  // namespace
}  // namespace gradrail::topology
