#include "tests/topology/synthetic_machines.h"

#include <array>

#include "fmt/format.h"

namespace gradrail::topology {
namespace {

constexpr int kNetwork = 2;
constexpr int kOpenFabrics = 3;
constexpr int kCoprocessor = 5;

/// hwloc's way to write a set: words of 32 bits, the highest first.
std::string bitmap(const CpuSet& cpus) {
  const std::vector<int> list = cpus.to_vector();
  const size_t words = list.empty() ? 1 : static_cast<size_t>(list.back()) / 32 + 1;
  std::string text;
  for (size_t word = words; word-- > 0;) {
    uint32_t bits = 0;
    for (const int cpu : list)
      if (static_cast<size_t>(cpu) / 32 == word) bits |= uint32_t{1} << (cpu % 32);
    text += fmt::format("{}0x{:08x}", text.empty() ? "" : ",", bits);
  }
  return text;
}

std::string sets(const CpuSet& cpus, const CpuSet& nodes) {
  return fmt::format(R"(cpuset="{0}" complete_cpuset="{0}" nodeset="{1}" complete_nodeset="{1}")", bitmap(cpus),
                     bitmap(nodes));
}

}  // namespace

MachineXml::MachineXml(const CpuSet& cpus, const CpuSet& numa_nodes, const CpuSet& allowed) {
  text_ =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
      "version=\"2.0\">\n";
  begin("Machine", fmt::format(R"(os_index="0" {} allowed_cpuset="{}" allowed_nodeset="{}")", sets(cpus, numa_nodes),
                               bitmap(allowed.empty() ? cpus : allowed), bitmap(numa_nodes)));
}

MachineXml& MachineXml::begin(std::string_view type, std::string_view attributes) {
  text_ += fmt::format("<object type=\"{}\" {} gp_index=\"{}\">\n", type, attributes, next_id_++);
  ++depth_;
  return *this;
}

MachineXml& MachineXml::end() {
  text_ += "</object>\n";
  --depth_;
  return *this;
}

MachineXml& MachineXml::info(std::string_view name, std::string_view value) {
  text_ += fmt::format("<info name=\"{}\" value=\"{}\"/>\n", name, value);
  return *this;
}

MachineXml& MachineXml::begin_package(int os_index, const CpuSet& cpus, const CpuSet& numa_nodes) {
  return begin("Package", fmt::format("os_index=\"{}\" {}", os_index, sets(cpus, numa_nodes)));
}

MachineXml& MachineXml::numa_node(int os_index, const CpuSet& cpus, uint64_t bytes) {
  return begin("NUMANode",
               fmt::format("os_index=\"{}\" {} local_memory=\"{}\"", os_index, sets(cpus, {os_index}), bytes))
      .end();
}

MachineXml& MachineXml::core(int os_index, const CpuSet& cpus, int numa_node) {
  begin("Core", fmt::format("os_index=\"{}\" {}", os_index, sets(cpus, {numa_node})));
  for (const int cpu : cpus.to_vector())
    begin("PU", fmt::format("os_index=\"{}\" {}", cpu, sets({cpu}, {numa_node}))).end();
  return end();
}

MachineXml& MachineXml::begin_host_bridge(std::string_view buses) {
  return begin("Bridge", fmt::format(R"(bridge_type="0-1" depth="0" bridge_pci="{}")", buses));
}

MachineXml& MachineXml::begin_bridge(std::string_view address, std::string_view buses) {
  return begin("Bridge", fmt::format(R"(bridge_type="1-1" depth="1" bridge_pci="{}" pci_busid="{}" )"
                                     R"(pci_type="0604 [1000:c010] [1000:100b] b0" pci_link_speed="31.507692")",
                                     buses, address));
}

MachineXml& MachineXml::begin_pci(std::string_view address, std::string_view id, double gbyte_per_s) {
  return begin("PCIDev", fmt::format(R"(pci_busid="{}" pci_type="{} [0000:0000] 00" pci_link_speed="{:.6f}")", address,
                                     id, gbyte_per_s));
}

MachineXml& MachineXml::begin_os_device(std::string_view name, int kind) {
  return begin("OSDev", fmt::format(R"(name="{}" osdev_type="{}")", name, kind));
}

std::string MachineXml::text() {
  while (depth_ > 0) end();
  return text_ + "</topology>\n";
}

CpuSet range(int first, int count) {
  CpuSet cpus;
  for (int cpu = first; cpu < first + count; ++cpu) cpus.insert(cpu);
  return cpus;
}

std::string two_socket_text(int cores, bool cuda) {
  MachineXml xml(range(0, 4 * cores), {0, 1});
  for (int package = 0; package < 2; ++package) {
    const int first = package * cores, bus = package == 0 ? 0x00 : 0x80;
    const CpuSet cpus = range(first, cores) | range(first + 2 * cores, cores);
    xml.begin_package(package, cpus, {package}).info("CPUModel", "Synthetic").numa_node(package, cpus);
    for (int core = first; core < first + cores; ++core) xml.core(core, {core, core + 2 * cores}, package);
    const auto address = [&](int number, int device) {
      return fmt::format("0000:{:02x}:{:02x}.0", bus + number, device);
    };
    const auto buses = [&](int low, int high) { return fmt::format("0000:[{:02x}-{:02x}]", bus + low, bus + high); };
    xml.begin_host_bridge(buses(0, 6))
        .begin_bridge(address(0, 1), buses(1, 4))
        .begin_bridge(address(1, 0), buses(2, 4));
    xml.begin_bridge(address(2, 0), buses(3, 3)).begin_pci(address(3, 0), "0302 [10de:20b0]");
    // CUDA counts from the far end, so that its order and that of PCI differ.
    if (cuda)
      xml.os_device(fmt::format("cuda{}", 1 - package), kCoprocessor).os_device(fmt::format("nvml{}", package), 1);
    xml.end().end().begin_bridge(address(2, 1), buses(4, 4)).begin_pci(address(4, 0), "0207 [15b3:101b]", 31.5);
    xml.begin_os_device(fmt::format("ib{}", package), kNetwork)
        .info("Address", fmt::format("20:00:00:00:fe:80:00:00:00:00:00:00:08:00:38:00:01:bf:f8:d{}", package))
        .info("Port", "1")
        .end();
    xml.begin_os_device(fmt::format("mlx5_{}", package), kOpenFabrics)
        .info("NodeGUID", "0800:3800:01bf:f8d8")
        .info("Port1State", "4")
        .info("Port1LID", "0x334")
        .end();
    xml.end()
        .end()
        .end()
        .end()
        .begin_bridge(address(0, 2), buses(5, 5))
        .begin_pci(address(5, 0), "0200 [8086:1563]", 1);
    xml.begin_os_device(fmt::format("eth{}", package), kNetwork).info("Address", "a4:bf:01:5e:95:36").end().end().end();
    if (package == 0)
      xml.begin_bridge(address(0, 3), buses(6, 6)).begin_pci(address(6, 0), "0300 [1a03:2000]", 0).end().end();
    xml.end().end();
  }
  return xml.text();
}

std::string power_text() {
  const CpuSet first = range(8, 8), second = range(96, 8);
  MachineXml xml(first | second, {0, 8, 252});
  xml.numa_node(252, {}, uint64_t{16} << 30);
  for (const auto& [node, cpus] : {std::pair(0, first), std::pair(8, second)}) {
    xml.begin_package(node, cpus, {node}).numa_node(node, cpus);
    const int begin = cpus.first();
    xml.core(begin / 4, range(begin, 4), node).core(begin / 4 + 1, range(begin + 4, 4), node).end();
  }
  return xml.text();
}

std::string bare_text() {
  MachineXml xml(range(0, 3), {0});
  xml.numa_node(0, range(0, 3));
  for (int cpu = 0; cpu < 3; ++cpu) xml.begin("PU", fmt::format("os_index=\"{}\" {}", cpu, sets({cpu}, {0}))).end();
  return xml.text();
}

std::vector<std::string> synthetic_texts() {
  return {two_socket_text(), two_socket_text(2, true), power_text(), bare_text()};
}

}  // namespace gradrail::topology
