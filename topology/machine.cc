#include "topology/machine.h"

#include <algorithm>
#include <optional>

#include "fmt/format.h"

namespace gradrail::topology {
namespace {

/// Bridges from a device's bridge up to its host bridge.
std::vector<int> bridges_above(const Machine& machine, int bridge) {
  std::vector<int> chain;
  for (; bridge >= 0; bridge = machine.bridges[bridge].parent) chain.push_back(bridge);
  return chain;
}

/// The path class from the common part of two chains of bridges; nullopt when there is none.
std::optional<PathClass> shared_bridges(const Machine& machine, const PciPlace& a, const PciPlace& b) {
  // The first common bridge from below is the nearest one.
  const std::vector<int> above_a = bridges_above(machine, a.bridge);
  const std::vector<int> above_b = bridges_above(machine, b.bridge);
  for (size_t steps_a = 0; steps_a < above_a.size(); ++steps_a) {
    const auto common = std::find(above_b.begin(), above_b.end(), above_a[steps_a]);
    if (common == above_b.end()) continue;
    // A common host bridge means that the traffic passes the root complex.
    if (machine.bridges[*common].host) return PathClass::same_root;
    // A switch is an upstream port with downstream ports below it: one bridge more on either side is still one switch.
    const auto steps_b = static_cast<size_t>(common - above_b.begin());
    return steps_a <= 1 && steps_b <= 1 ? PathClass::same_switch : PathClass::same_root_port;
  }
  return std::nullopt;
}

}  // namespace

std::string PciAddress::to_string() const {
  // The format is that of sysfs and lspci -D, so that users can search for it.
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

bool Nic::usable() const {
  // Nothing is recorded about its ports: it counts as usable.
  if (ports.empty()) return true;
  return std::any_of(ports.begin(), ports.end(), [](const NicPort& port) {
    return port.state == PortState::active || port.state == PortState::unknown;
  });
}

PathClass path_class(const Machine& machine, const PciPlace& a, const PciPlace& b) {
  if (const std::optional<PathClass> shared = shared_bridges(machine, a, b)) return *shared;
  // No common bridge: both devices are below different roots, and their CPUs decide.
  if (a.numa_node >= 0 && a.numa_node == b.numa_node) return PathClass::same_numa_node;
  if (a.package >= 0 && a.package == b.package) return PathClass::same_package;
  // A device without a recorded place may be near or far: `across` would be a guess.
  const bool recorded = a.package >= 0 && b.package >= 0;
  return recorded ? PathClass::across : PathClass::unknown;
}

const char* to_string(PathClass path) {
  switch (path) {
    case PathClass::same_switch:
      return "same switch";
    case PathClass::same_root_port:
      return "switches of one root port";
    case PathClass::same_root:
      return "bridges of one root";
    case PathClass::same_numa_node:
      return "same NUMA node";
    case PathClass::same_package:
      return "same package";
    case PathClass::across:
      return "across packages";
    case PathClass::unknown:
      return "not recorded";
  }
  return "?";
}

const char* to_string(Vendor vendor) {
  switch (vendor) {
    case Vendor::nvidia:
      return "NVIDIA";
    case Vendor::amd:
      return "AMD";
    case Vendor::intel:
      return "Intel";
    case Vendor::other:
      return "other";
  }
  return "?";
}

const char* to_string(PortState state) {
  switch (state) {
    case PortState::unknown:
      return "unknown";
    case PortState::down:
      return "down";
    case PortState::init:
      return "init";
    case PortState::armed:
      return "armed";
    case PortState::active:
      return "active";
  }
  return "?";
}

int usable_core_count(const Machine& machine) {
  return static_cast<int>(std::count_if(machine.cores.begin(), machine.cores.end(),
                                        [](const Core& core) { return !core.allowed.empty(); }));
}

}  // namespace gradrail::topology
