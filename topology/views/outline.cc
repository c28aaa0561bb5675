#include "topology/views/outline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "fmt/format.h"

namespace gradrail::topology {
namespace {

using Kind = Box::Kind;

std::string gigabytes(uint64_t bytes) {
  // 2^30 bytes, as lstopo counts: both outputs are compared.
  return bytes == 0 ? "" : fmt::format("{:.0f} GB", static_cast<double>(bytes) / (1 << 30));
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : between) + part;
  }
  return text;
}

std::string describe(const Nic& nic) {
  std::vector<std::string> parts;
  // A NIC without RDMA is named after its interface, which the title has already.
  if (nic.interface != nic.name) parts.push_back(nic.interface);
  parts.push_back(nic.infiniband ? "InfiniBand" : nic.rdma ? "Ethernet, RDMA" : "Ethernet");
  for (const NicPort& port : nic.ports) {
    std::string text = nic.ports.size() > 1 ? fmt::format("port {} ", port.number) : "";
    if (port.state != PortState::unknown) text += to_string(port.state);
    if (port.gbit_per_s > 0) text += fmt::format(" {:g} Gb/s", port.gbit_per_s);
    parts.push_back(text);
  }
  return joined(parts, ", ");
}

class OutlineMaker {
 public:
  OutlineMaker(const Machine& machine, const Placement& placement) : machine_(machine), placement_(placement) {
    for (const TowerPlace& tower : placement.towers)
      tenants_.push_back({.name = fmt::format("worker/{} tower {}", tower.task_index, tower.tower),
                          .mark = fmt::format("w{}.{}", tower.task_index, tower.tower),
                          .is_tower = true});
    for (const ShardPlace& shard : placement.shards)
      tenants_.push_back({.name = fmt::format("ps/{} shard {}", shard.task_index, shard.shard),
                          .mark = fmt::format("s{}.{}", shard.task_index, shard.shard),
                          .is_tower = false});
  }

  Outline make() {
    Box whole{.kind = Kind::machine,
              .title = machine_.name.empty() ? "Machine" : fmt::format("Machine {}", machine_.name),
              .detail = machine_.source};
    // The order is from the outside inwards: each level adds its inner boxes first, then objects of no inner box.
    for (int package = 0; package < static_cast<int>(machine_.packages.size()); ++package)
      whole.inside.push_back(package_box(package));
    add_contents(whole, -1, -1);
    return {.occupants = tenants_, .machine = std::move(whole)};
  }

 private:
  Box package_box(int package) {
    Box box{.kind = Kind::package,
            .title = fmt::format("Package {}", machine_.packages[package].os_index),
            .detail = machine_.packages[package].model};
    for (int node = 0; node < static_cast<int>(machine_.numa_nodes.size()); ++node) {
      if (machine_.numa_nodes[node].package == package) box.inside.push_back(node_box(node));
    }
    add_contents(box, package, -1);
    return box;
  }

  Box node_box(int node) {
    const NumaNode& numa = machine_.numa_nodes[node];
    Box box{.kind = Kind::numa_node,
            .title = fmt::format("NUMA node {}", numa.os_index),
            .detail = joined({gigabytes(numa.memory_bytes), numa.allowed ? "" : "closed to this process"}, ", ")};
    add_contents(box, numa.package, node);
    return box;
  }

  /// Cores and devices that belong right here: neither to a box further inside nor to one further out.
  void add_contents(Box& box, int package, int node) {
    for (const Core& core : machine_.cores)
      // -1 equals -1: a core without a recorded place is drawn in the machine itself.
      if (core.package == package && core.numa_node == node) box.slots.push_back(slot(core));
    // Nodes that span packages, or belong to none.
    if (package < 0 && node < 0) {
      for (int other = 0; other < static_cast<int>(machine_.numa_nodes.size()); ++other)
        if (machine_.numa_nodes[other].package < 0) box.inside.push_back(node_box(other));
    }
    for (int bridge = 0; bridge < static_cast<int>(machine_.bridges.size()); ++bridge) {
      if (machine_.bridges[bridge].parent < 0 && locality_of(bridge) == std::pair(package, node)) {
        Box root = bridge_box(bridge);
        // A root without a GPU or NIC below it has no part in a plan.
        if (!root.inside.empty()) box.inside.push_back(std::move(root));
      }
    }
    add_devices(box, [&](const PciPlace& place) {
      // Devices below a bridge are drawn there, and the root of the bridge has the place.
      return place.bridge < 0 && std::pair(place.package, place.numa_node) == std::pair(package, node);
    });
  }

  template <typename Here>
  void add_devices(Box& box, Here here) {
    for (int gpu = 0; gpu < static_cast<int>(machine_.gpus.size()); ++gpu)
      if (here(machine_.gpus[gpu].place)) box.inside.push_back(gpu_box(gpu));
    for (int nic = 0; nic < static_cast<int>(machine_.nics.size()); ++nic)
      if (here(machine_.nics[nic].place)) box.inside.push_back(nic_box(nic));
  }

  Box bridge_box(int bridge) {
    const Bridge& of = machine_.bridges[bridge];
    Box box{.kind = of.host ? Kind::root : Kind::bridge, .title = of.host ? "PCI root" : "bridge"};
    if (of.host) {
      box.detail = fmt::format("{:04x}:{:02x}", of.address.domain, of.address.bus);
    } else {
      box.detail = of.address.to_string();
    }
    for (int below = 0; below < static_cast<int>(machine_.bridges.size()); ++below) {
      if (machine_.bridges[below].parent != bridge) continue;
      Box inner = bridge_box(below);
      // A bridge with a single child adds no information about distances: the child replaces it in the picture.
      if (inner.inside.size() == 1) inner = std::move(inner.inside.front());
      if (inner.kind != Kind::bridge || !inner.inside.empty()) box.inside.push_back(std::move(inner));
    }
    add_devices(box, [&](const PciPlace& place) { return place.bridge == bridge; });
    return box;
  }

  Box gpu_box(int index) {
    const Gpu& gpu = machine_.gpus[index];
    Box box{.kind = Kind::gpu,
            .title = fmt::format("GPU {}", gpu.index),
            .detail = joined({joined({to_string(gpu.vendor), gpu.model}, " "), gpu.place.address.to_string()}, ", ")};
    for (size_t i = 0; i < placement_.towers.size(); ++i)
      if (placement_.towers[i].gpu == index) box.occupants.push_back(static_cast<int>(i));
    return box;
  }

  Box nic_box(int index) {
    const Nic& nic = machine_.nics[index];
    const std::string address = nic.place.bridge < 0 ? "" : nic.place.address.to_string();
    Box box{
        .kind = Kind::nic, .title = fmt::format("NIC {}", nic.name), .detail = joined({describe(nic), address}, ", ")};
    for (size_t i = 0; i < placement_.towers.size(); ++i)
      if (placement_.towers[i].nic == index) box.occupants.push_back(static_cast<int>(i));
    for (size_t i = 0; i < placement_.shards.size(); ++i)
      if (placement_.shards[i].nic == index) box.occupants.push_back(static_cast<int>(placement_.towers.size() + i));
    return box;
  }

  CoreSlot slot(const Core& core) {
    CoreSlot slot{.cpus = core.cpus, .open = !core.allowed.empty()};
    const auto runs_on = [&](const CpuSet& cpus) {
      return std::any_of(core.cpus.begin(), core.cpus.end(), [&](int cpu) { return cpus.contains(cpu); });
    };
    for (size_t i = 0; i < placement_.towers.size(); ++i) {
      const TowerPlace& tower = placement_.towers[i];
      // A tower occupies a core once, also where its progress thread runs on a sibling of its compute thread.
      if (runs_on(tower.compute | tower.progress)) slot.occupants.push_back(static_cast<int>(i));
      slot.progress = slot.progress || (runs_on(tower.progress) && !runs_on(tower.compute));
    }
    for (size_t i = 0; i < placement_.shards.size(); ++i)
      if (runs_on(placement_.shards[i].cpus)) slot.occupants.push_back(static_cast<int>(placement_.towers.size() + i));
    return slot;
  }

  /// The package and NUMA node that everything below a host bridge agrees on.
  std::pair<int, int> locality_of(int root) {
    std::optional<std::pair<int, int>> locality;
    const auto look_at = [&](const PciPlace& place) {
      int top = place.bridge;
      while (top >= 0 && machine_.bridges[top].parent >= 0) top = machine_.bridges[top].parent;
      if (top != root) return;
      const std::pair<int, int> here(place.package, place.numa_node);
      // Devices of one root that disagree put the root outside of all packages: it would be wrong for some of them.
      locality = !locality.has_value() || *locality == here ? here : std::pair(-1, -1);
    };
    for (const Gpu& gpu : machine_.gpus) look_at(gpu.place);
    for (const Nic& nic : machine_.nics) look_at(nic.place);
    return locality.value_or(std::pair(-1, -1));
  }

  const Machine& machine_;
  const Placement& placement_;
  std::vector<Occupant> tenants_;
};

}  // namespace

Outline make_outline(const Machine& machine, const Placement& placement) {
  return OutlineMaker(machine, placement).make();
}

}  // namespace gradrail::topology
