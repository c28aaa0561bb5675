#include "topology/discover/discover.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/topology/synthetic_machines.h"

namespace gradrail::topology {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Machine read(const std::string& xml) {
  const absl::StatusOr<Machine> machine = from_xml(xml, "test");
  EXPECT_TRUE(machine.ok()) << machine.status();
  return machine.ok() ? *machine : Machine{};
}

/// A small machine with one PCI device and the devices of the system below it.
Machine with_device(const std::string& address, const std::string& id,
                    const std::vector<std::pair<std::string, int>>& os = {}) {
  MachineXml xml({0, 1}, {0});
  xml.numa_node(0, {0, 1}).core(0, {0}, 0).core(1, {1}, 0).begin_host_bridge("0000:[00-ff]").begin_pci(address, id);
  for (const auto& [name, kind] : os) xml.os_device(name, kind);
  return read(xml.text());
}

TEST(Discover, TwoSockets) {
  const Machine machine = read(two_socket_text());
  ASSERT_EQ(machine.packages.size(), 2u);
  EXPECT_EQ(machine.packages[1].model, "Synthetic");
  ASSERT_EQ(machine.cores.size(), 8u);
  EXPECT_THAT(machine.cores[5].cpus, ElementsAre(5, 13));
  EXPECT_EQ(machine.cores[5].package, 1);
  EXPECT_EQ(machine.cores[5].numa_node, 1);
  ASSERT_EQ(machine.gpus.size(), 2u);
  EXPECT_EQ(machine.gpus[1].place.address.to_string(), "0000:83:00.0");
  ASSERT_EQ(machine.nics.size(), 4u);
  const auto path = [&](int gpu, int nic) {
    return path_class(machine, machine.gpus[gpu].place, machine.nics[nic].place);
  };
  EXPECT_EQ(path(0, 0), PathClass::same_switch);
  EXPECT_EQ(path(0, 1), PathClass::same_root);
  EXPECT_EQ(path(0, 2), PathClass::across);
  EXPECT_EQ(path(1, 2), PathClass::same_switch);
  EXPECT_EQ(machine.nics[0].name, "mlx5_0");
  EXPECT_EQ(machine.nics[0].interface, "ib0");
  EXPECT_TRUE(machine.nics[0].infiniband);
  EXPECT_NEAR(machine.nics[0].pci_gbyte_per_s, 31.5, 0.01);
  ASSERT_EQ(machine.nics[0].ports.size(), 1u);
  EXPECT_EQ(machine.nics[0].ports[0].state, PortState::active);
  EXPECT_FALSE(machine.nics[1].rdma);
  EXPECT_FALSE(machine.live);
  EXPECT_THAT(machine.notes, ElementsAre(testing::HasSubstr("0000:06:00.0 (1a03:2000) is a display chip")));
}

TEST(Discover, CudaNumbersGoBeforePciOrder) {
  const Machine machine = read(two_socket_text(2, true));
  ASSERT_EQ(machine.gpus.size(), 2u);  // cuda0 and nvml1 are one chip
  EXPECT_EQ(machine.gpus[0].name, "cuda0");
  EXPECT_EQ(machine.gpus[0].place.address.to_string(), "0000:83:00.0");
  EXPECT_EQ(machine.gpus[1].index, 1);
}

TEST(Discover, PowerHasGapsAndMemoryWithoutCpus) {
  const Machine machine = read(power_text());
  ASSERT_EQ(machine.cores.size(), 4u);
  EXPECT_THAT(machine.cores[2].cpus, ElementsAre(96, 97, 98, 99));
  EXPECT_EQ(machine.cores[2].numa_node, 1);
  ASSERT_EQ(machine.numa_nodes.size(), 3u);
  EXPECT_EQ(machine.numa_nodes[1].os_index, 8);
  EXPECT_EQ(machine.numa_nodes[2].os_index, 252);
  EXPECT_TRUE(machine.numa_nodes[2].cpus.empty());
  EXPECT_EQ(machine.numa_nodes[2].memory_bytes, uint64_t{16} << 30);
}

TEST(Discover, CpusWithoutCoresAndPackages) {
  const Machine machine = read(bare_text());
  EXPECT_EQ(machine.cores.size(), 3u);
  EXPECT_THAT(machine.packages, IsEmpty());
  EXPECT_EQ(machine.cores[1].package, -1);
  EXPECT_EQ(machine.cores[1].numa_node, 0);
}

TEST(Discover, ClosedCpusStayInThePicture) {
  MachineXml xml({0, 1, 2, 3}, {0}, {1, 2});
  xml.numa_node(0, {0, 1, 2, 3}).core(0, {0, 1}, 0).core(1, {2, 3}, 0);
  const Machine machine = read(xml.text());
  EXPECT_EQ(machine.allowed.to_string(), "1-2");
  ASSERT_EQ(machine.cores.size(), 2u);
  EXPECT_THAT(machine.cores[0].cpus, ElementsAre(0, 1));
  EXPECT_THAT(machine.cores[0].allowed, ElementsAre(1));
}

TEST(Discover, DisplayChipsAreNoGpus) {
  for (const char* id :
       {"0300 [1a03:2000]", "0300 [102b:0538]", "0300 [1013:00b8]", "0300 [1234:1111]", "0380 [1af4:1050]",
        "0300 [15ad:0405]", "0300 [19e5:1711]", "0300 [18ca:0020]", "0300 [1002:515e]", "0300 [1002:4752]"})
    EXPECT_THAT(with_device("0000:06:00.0", id, {{"card0", 1}}).gpus, IsEmpty()) << id;
  EXPECT_THAT(with_device("0000:00:02.0", "0300 [8086:3e98]").gpus, IsEmpty()) << "inside of the processor";
  EXPECT_THAT(with_device("0000:06:00.0", "0680 [10de:22a3]").gpus, IsEmpty()) << "an NVSwitch";
}

TEST(Discover, GpusByVendor) {
  const auto vendor = [](const char* id) {
    const Machine machine = with_device("0000:06:00.0", id);
    return machine.gpus.size() == 1 ? machine.gpus[0].vendor : Vendor::other;
  };
  EXPECT_EQ(vendor("0300 [10de:1eb8]"), Vendor::nvidia);
  EXPECT_EQ(vendor("0302 [10de:2330]"), Vendor::nvidia);
  EXPECT_EQ(vendor("0380 [1002:740f]"), Vendor::amd);
  EXPECT_EQ(vendor("1200 [1002:74a1]"), Vendor::amd);
  EXPECT_EQ(vendor("0380 [8086:0bd5]"), Vendor::intel);
}

TEST(Discover, GpusByLibraryWhateverTheirClass) {
  const Machine machine = with_device("0000:06:00.0", "1200 [1d94:51b7]", {{"rsmi0", 1}});
  ASSERT_EQ(machine.gpus.size(), 1u);
  EXPECT_EQ(machine.gpus[0].name, "rsmi0");
  EXPECT_EQ(machine.gpus[0].vendor, Vendor::other);
}

TEST(Discover, TwoPortsOfOneCard) {
  MachineXml xml({0}, {0});
  xml.numa_node(0, {0}).core(0, {0}, 0).begin_host_bridge("0000:[00-04]").begin_pci("0000:02:00.0", "0280 [15b3:1003]");
  xml.begin_os_device("ib1", 2).info("Port", "2").end().begin_os_device("ib0", 2).info("Port", "1").end();
  xml.begin_os_device("mlx4_0", 3).info("Port2State", "1").info("Port1State", "4").info("Port1LID", "0x24").end();
  const Machine machine = read(xml.text());
  ASSERT_EQ(machine.nics.size(), 1u);
  EXPECT_EQ(machine.nics[0].interface, "ib0");
  EXPECT_TRUE(machine.nics[0].infiniband);
  ASSERT_EQ(machine.nics[0].ports.size(), 2u);
  EXPECT_EQ(machine.nics[0].ports[1].number, 2);
  EXPECT_EQ(machine.nics[0].ports[1].state, PortState::down);
  EXPECT_TRUE(machine.nics[0].usable());
}

TEST(Discover, EthernetRdmaIsNoInfiniband) {
  MachineXml xml({0}, {0});
  xml.numa_node(0, {0}).core(0, {0}, 0).begin_host_bridge("0000:[00-04]").begin_pci("0000:02:00.0", "0200 [15b3:101d]");
  xml.begin_os_device("ens1", 2).info("Address", "b8:59:9f:00:00:01").end();
  xml.begin_os_device("mlx5_0", 3).info("Port1State", "4").info("Port1LID", "0x0").end();
  const Machine machine = read(xml.text());
  ASSERT_EQ(machine.nics.size(), 1u);
  EXPECT_TRUE(machine.nics[0].rdma);
  EXPECT_FALSE(machine.nics[0].infiniband);
}

/// A root bridge of the whole machine has no known node on a machine of two nodes. On one node its place is known.
TEST(Discover, DevicesOfTheWholeMachine) {
  MachineXml xml({0, 1}, {0, 1});
  for (const int node : {0, 1})
    xml.begin_package(node, {node}, {node}).numa_node(node, {node}).core(node, {node}, node).end();
  xml.begin_host_bridge("0000:[00-04]").begin_pci("0000:01:00.0", "0302 [10de:20b0]");
  const Machine two = read(xml.text());
  ASSERT_EQ(two.gpus.size(), 1u);
  EXPECT_EQ(two.gpus[0].place.numa_node, -1);
  EXPECT_EQ(two.gpus[0].place.package, -1);
  EXPECT_TRUE(two.gpus[0].place.cpus.empty());
  const Machine one = with_device("0000:01:00.0", "0302 [10de:20b0]");
  ASSERT_EQ(one.gpus.size(), 1u);
  EXPECT_EQ(one.gpus[0].place.numa_node, 0);
}

TEST(Discover, KindsOfCoresAreRanked) {
  std::string xml = MachineXml({0, 1}, {0}).numa_node(0, {0, 1}).core(0, {0}, 0).core(1, {1}, 0).text();
  xml.insert(xml.rfind("</topology>"),
             "<cpukind cpuset=\"0x1\" forced_efficiency=\"1\"/>\n<cpukind cpuset=\"0x2\" forced_efficiency=\"0\"/>\n");
  const Machine machine = read(xml);
  ASSERT_EQ(machine.cores.size(), 2u);
  EXPECT_GT(machine.cores[0].efficiency, machine.cores[1].efficiency);
}

TEST(Discover, SyntheticDescriptions) {
  const absl::StatusOr<Machine> machine = load("pack:2 [numa] core:4 pu:2");
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_EQ(machine->cores.size(), 8u);
  EXPECT_EQ(machine->numa_nodes.size(), 2u);
  EXPECT_EQ(machine->source, "pack:2 [numa] core:4 pu:2");
}

TEST(Discover, HighNumbersArriveWhole) {
  const absl::StatusOr<Machine> machine = from_synthetic("pack:16 [numa] core:64 pu:4");
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_EQ(machine->cores.size(), 1024u);
  EXPECT_EQ(machine->allowed.count(), 4096);
  EXPECT_EQ(machine->cores.back().numa_node, 15);
}

}  // namespace
}  // namespace gradrail::topology
