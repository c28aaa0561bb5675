#pragma once

#include <string>

#include "topology/machine.h"

namespace gradrail::topology {

/// Machines for tests, described in a line instead of drawn by hwloc.
struct Shape {
  int packages = 1;
  int nodes_per_package = 1;  ///< 0: no NUMA nodes recorded
  int cores_per_node = 4;     ///< of a package, where no nodes are recorded
  int smt = 1;
  int cpu_stride = 1;  ///< between the numbers of neighboring cpus: POWER leaves gaps
};

class MachineBuilder {
 public:
  /// Siblings are numbered side by side (as POWER does), or all first siblings before all second ones (as x86 does).
  enum class Numbering { siblings_last, siblings_adjacent };
  explicit MachineBuilder(const Shape& shape, Numbering numbering = Numbering::siblings_last);

  /// A host bridge of a package, near one of its nodes (-1: of unknown node), and one below another bridge.
  int root(int package, int numa_node);
  int bridge(int parent);

  /// Devices below a bridge; place and address are taken from it. Return their index.
  int gpu(int bridge, Vendor vendor = Vendor::nvidia);
  int nic(int bridge, bool rdma = true, PortState state = PortState::active);
  /// Another port of the NIC added last: a function of the same card.
  int nic_port(bool rdma = true, PortState state = PortState::active);

  /// One more package with one node and so many cores: packages need not be alike.
  void package(int cores, int smt = 1);
  /// A node with memory alone, as POWER has for GPUs.
  void memory_node(int package);
  /// Closes cpus to this process.
  void close(const CpuSet& cpus);

  Machine& machine() { return machine_; }

 private:
  void add_core(int package, int numa_node, const std::vector<int>& cpus);
  PciPlace place_below(int bridge);

  Machine machine_;
  int next_cpu_ = 0;
  int stride_ = 1;
};

}  // namespace gradrail::topology
