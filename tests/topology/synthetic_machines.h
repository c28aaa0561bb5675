#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/cpu_set.h"

namespace gradrail::topology {

/// Writes an hwloc XML text (version 2) object by object. So tests can describe machines that hwloc's synthetic
/// descriptions cannot: PCI devices with devices below them, gaps, holes.
class MachineXml {
 public:
  /// `allowed` empty: all.
  MachineXml(const CpuSet& cpus, const CpuSet& numa_nodes, const CpuSet& allowed = {});

  MachineXml& begin(std::string_view type, std::string_view attributes);
  MachineXml& end();
  MachineXml& info(std::string_view name, std::string_view value);

  MachineXml& begin_package(int os_index, const CpuSet& cpus, const CpuSet& numa_nodes);
  MachineXml& numa_node(int os_index, const CpuSet& cpus, uint64_t bytes = uint64_t{1} << 30);
  MachineXml& core(int os_index, const CpuSet& cpus, int numa_node);

  /// "0000:[03-05]" and the like; a bridge below another has an address.
  MachineXml& begin_host_bridge(std::string_view buses);
  MachineXml& begin_bridge(std::string_view address, std::string_view buses);
  /// `id` is class, vendor and device: "0302 [10de:20b0]".
  MachineXml& begin_pci(std::string_view address, std::string_view id, double gbyte_per_s = 15.75);
  /// `kind` is hwloc's number: 1 GPU, 2 network, 3 OpenFabrics, 5 coprocessor.
  MachineXml& begin_os_device(std::string_view name, int kind);
  MachineXml& os_device(std::string_view name, int kind) { return begin_os_device(name, kind).end(); }

  /// Closes what is open.
  std::string text();

 private:
  std::string text_;
  int depth_ = 0;
  int next_id_ = 1;
};

/// `count` cpus from `first` on.
CpuSet range(int first, int count);

/// Two packages, each with a NUMA node and `cores` cores (two siblings each). Each package has a switch with a GPU and
/// an InfiniBand card beside each other, and a plain Ethernet card. The first package has the display chip of a server.
std::string two_socket_text(int cores = 4, bool cuda = false);

/// POWER's way of numbering: four siblings, gaps, node 8 beside node 0, and GPU memory as a node without cpus.
std::string power_text();

/// One package without a NUMA node, cores or anything but cpus, as some virtual machines look.
std::string bare_text();

/// All of the above, as seeds.
std::vector<std::string> synthetic_texts();

}  // namespace gradrail::topology
