#include "tests/topology/machine_builder.h"

#include "fmt/format.h"

namespace gradrail::topology {

MachineBuilder::MachineBuilder(const Shape& shape, Numbering numbering) : stride_(shape.cpu_stride) {
  machine_.name = "built";
  machine_.source = "a test";
  const int nodes = std::max(shape.nodes_per_package, 1);
  const int core_count = shape.packages * nodes * shape.cores_per_node;
  int core = 0;
  for (int package = 0; package < shape.packages; ++package) {
    machine_.packages.push_back({.os_index = package, .model = ""});
    for (int node = 0; node < nodes; ++node) {
      const int numa_node = shape.nodes_per_package > 0 ? static_cast<int>(machine_.numa_nodes.size()) : -1;
      if (numa_node >= 0) machine_.numa_nodes.push_back({.os_index = numa_node, .package = package, .cpus = {}});
      for (int i = 0; i < shape.cores_per_node; ++i, ++core) {
        std::vector<int> cpus;
        for (int sibling = 0; sibling < shape.smt; ++sibling) {
          const int number =
              numbering == Numbering::siblings_last ? sibling * core_count + core : core * shape.smt + sibling;
          cpus.push_back(number * stride_);
        }
        add_core(package, numa_node, cpus);
      }
    }
  }
  next_cpu_ = core_count * shape.smt * stride_;
}

int MachineBuilder::root(int package, int numa_node) {
  Bridge bridge{.parent = -1, .host = true};
  if (numa_node >= 0) bridge.cpus = machine_.numa_nodes[numa_node].cpus;
  for (size_t i = 0; i < machine_.cores.size() && numa_node < 0; ++i)
    if (machine_.cores[i].package == package)
      for (const int cpu : machine_.cores[i].cpus) bridge.cpus.insert(cpu);
  machine_.bridges.push_back(std::move(bridge));
  return static_cast<int>(machine_.bridges.size()) - 1;
}

int MachineBuilder::bridge(int parent) {
  machine_.bridges.push_back({.parent = parent, .host = false});
  return static_cast<int>(machine_.bridges.size()) - 1;
}

PciPlace MachineBuilder::place_below(int bridge) {
  PciPlace place;
  place.bridge = bridge;
  place.address.bus = static_cast<uint8_t>(machine_.gpus.size() + machine_.nics.size() + 1);
  int top = bridge;
  while (top >= 0 && machine_.bridges[top].parent >= 0) top = machine_.bridges[top].parent;
  if (top < 0) return place;
  place.cpus = machine_.bridges[top].cpus;
  for (size_t node = 0; node < machine_.numa_nodes.size() && !place.cpus.empty(); ++node)
    if (machine_.numa_nodes[node].cpus == place.cpus) place.numa_node = static_cast<int>(node);
  for (const Core& core : machine_.cores)
    if (place.cpus.contains(core.cpus.front())) place.package = core.package;
  return place;
}

int MachineBuilder::gpu(int bridge, Vendor vendor) {
  const int index = static_cast<int>(machine_.gpus.size());
  machine_.gpus.push_back(
      {.index = index, .name = fmt::format("gpu{}", index), .vendor = vendor, .place = place_below(bridge)});
  return index;
}

int MachineBuilder::nic(int bridge, bool rdma, PortState state) {
  const int index = static_cast<int>(machine_.nics.size());
  Nic nic;
  nic.name = rdma ? fmt::format("mlx5_{}", index) : fmt::format("eth{}", index);
  nic.interface = rdma ? fmt::format("ib{}", index) : nic.name;
  nic.rdma = nic.infiniband = rdma;
  nic.ports = {{.number = 1, .state = state, .gbit_per_s = 100}};
  nic.place = place_below(bridge);
  machine_.nics.push_back(std::move(nic));
  return index;
}

int MachineBuilder::nic_port(bool rdma, PortState state) {
  const PciPlace card = machine_.nics.back().place;
  const int index = nic(card.bridge, rdma, state);
  machine_.nics.back().place = card;
  ++machine_.nics.back().place.address.function;
  return index;
}

void MachineBuilder::package(int cores, int smt) {
  const int package = static_cast<int>(machine_.packages.size());
  const int numa_node = static_cast<int>(machine_.numa_nodes.size());
  machine_.packages.push_back({.os_index = package, .model = ""});
  machine_.numa_nodes.push_back({.os_index = numa_node, .package = package, .cpus = {}});
  for (int i = 0; i < cores; ++i) {
    std::vector<int> cpus;
    for (int sibling = 0; sibling < smt; ++sibling, next_cpu_ += stride_) cpus.push_back(next_cpu_);
    add_core(package, numa_node, cpus);
  }
}

void MachineBuilder::memory_node(int package) {
  machine_.numa_nodes.push_back({.os_index = 252, .package = package, .cpus = {}});
}

void MachineBuilder::close(const CpuSet& cpus) {
  machine_.allowed = machine_.allowed - cpus;
  for (Core& core : machine_.cores) std::erase_if(core.allowed, [&](int cpu) { return cpus.contains(cpu); });
}

void MachineBuilder::add_core(int package, int numa_node, const std::vector<int>& cpus) {
  machine_.cores.push_back({.package = package, .numa_node = numa_node, .cpus = cpus, .allowed = cpus});
  for (const int cpu : cpus) {
    machine_.allowed.insert(cpu);
    if (numa_node >= 0) machine_.numa_nodes[numa_node].cpus.insert(cpu);
  }
}

}  // namespace gradrail::topology
