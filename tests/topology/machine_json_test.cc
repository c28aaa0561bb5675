#include "topology/discover/machine_json.h"

#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/topology/synthetic_machines.h"
#include "topology/discover/discover.h"

namespace gradrail::topology {
namespace {

Machine two_sockets() {
  const absl::StatusOr<Machine> machine = from_xml(two_socket_text(2), "two sockets");
  EXPECT_TRUE(machine.ok()) << machine.status();
  return machine.value_or(Machine{});
}

TEST(MachineJson, KeepsEachValue) {
  const Machine machine = two_sockets();
  const std::string text = write_machine(machine);
  const absl::StatusOr<Machine> again = parse_machine(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(write_machine(*again), text);
  ASSERT_EQ(again->gpus.size(), machine.gpus.size());
  EXPECT_EQ(again->gpus[1].place.address, machine.gpus[1].place.address);
  EXPECT_EQ(again->gpus[1].place.cpus, machine.gpus[1].place.cpus);
  EXPECT_EQ(again->allowed, machine.allowed);
}

TEST(MachineJson, RefusesContradictions) {
  const std::vector<std::function<void(Machine&)>> changes = {
      [](Machine& m) { m.cores.clear(); },
      [](Machine& m) { m.cores[0].cpus = m.cores[1].cpus; },
      [](Machine& m) { m.cores[0].cpus = {-1}; },
      [](Machine& m) { m.cores[0].cpus = {CpuSet::kMaxCpu + 1}; },
      [](Machine& m) { m.cores[0].allowed = m.cores[1].allowed; },
      [](Machine& m) { m.allowed = {}; },
      [](Machine& m) { m.cores[0].package = static_cast<int>(m.packages.size()); },
      [](Machine& m) { m.cores[0].numa_node = -2; },
      [](Machine& m) { m.numa_nodes[1].os_index = m.numa_nodes[0].os_index; },
      [](Machine& m) { m.numa_nodes[0].package = 99; },
      [](Machine& m) { m.bridges[0].parent = 0; },
      [](Machine& m) { m.gpus[0].place.bridge = static_cast<int>(m.bridges.size()); },
      [](Machine& m) { m.gpus[0].index = -1; },
      [](Machine& m) { m.gpus[0].vendor = static_cast<Vendor>(7); },
      [](Machine& m) { m.nics[0].pci_gbyte_per_s = -1; },
      [](Machine& m) { m.nics[0].place.numa_node = 99; },
      [](Machine& m) { m.name = "\x1b[2J"; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Machine machine = two_sockets();
    changes[i](machine);
    EXPECT_EQ(parse_machine(write_machine(machine)).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

TEST(MachineJson, RefusesOtherTexts) {
  for (const char* text : {"", "{}", "[]", "{\"cores\": 1}", "null", "\xff"})
    EXPECT_EQ(parse_machine(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  const std::string text = write_machine(two_sockets());
  EXPECT_FALSE(parse_machine(text.substr(0, text.size() - 1)).ok());
}

}  // namespace
}  // namespace gradrail::topology
