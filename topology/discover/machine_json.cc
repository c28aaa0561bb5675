#include "topology/discover/machine_json.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <set>
#include <stdexcept>

#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace gradrail::topology {

using Json = nlohmann::json;

// The library finds these by their names and types.

void to_json(Json& json, const CpuSet& cpus) { json = cpus.to_string(); }
void from_json(const Json& json, CpuSet& cpus) {
  absl::StatusOr<CpuSet> parsed = CpuSet::parse(json.get<std::string>());
  if (!parsed.ok()) throw std::invalid_argument(std::string(message_of(parsed.status())));
  cpus = *std::move(parsed);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Package, os_index, model)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NumaNode, os_index, package, cpus, memory_bytes, allowed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Core, package, numa_node, cpus, allowed, efficiency)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PciAddress, domain, bus, device, function)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Bridge, parent, host, address, cpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PciPlace, address, bridge, numa_node, package, cpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Gpu, index, name, vendor, model, uuid, place)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NicPort, number, state, gbit_per_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Nic, name, interface, address, rdma, infiniband, ports, pci_gbyte_per_s, place)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Machine, name, packages, numa_nodes, cores, allowed, bridges, gpus, nics, notes)

namespace {

absl::Status wrong(std::string_view what) { return absl::InvalidArgumentError(fmt::format("{}", what)); }

/// Terminals show the names.
bool is_printable(const Json& json) {
  if (json.is_structured()) return std::all_of(json.begin(), json.end(), is_printable);
  if (!json.is_string()) return true;
  const auto& text = json.get_ref<const std::string&>();
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

/// Whether each number with a fraction or an exponent is one that the library can convert to any type of a field. The
/// conversion of 1e300 to an int is undefined. All such numbers are rates: none is negative.
bool is_convertible(const Json& json) {
  if (json.is_structured()) return std::all_of(json.begin(), json.end(), is_convertible);
  if (!json.is_number_float()) return true;
  const auto number = json.get<double>();
  return number >= 0 && number < std::numeric_limits<int>::max();
}

class MachineChecker {
 public:
  explicit MachineChecker(const Machine& machine) : machine_(machine) {}

  absl::Status run() const {
    GRADRAIL_RETURN_IF_ERROR(check_cores());
    GRADRAIL_RETURN_IF_ERROR(check_nodes());
    for (size_t i = 0; i < machine_.bridges.size(); ++i)
      if (!is_index(machine_.bridges[i].parent, i)) return wrong("a bridge stands before the bridge above it");
    for (const Gpu& gpu : machine_.gpus) {
      if (gpu.index < 0 || gpu.vendor < Vendor::nvidia || gpu.vendor > Vendor::other || !is_place(gpu.place))
        return wrong("a GPU has values outside of its range");
    }
    for (const Nic& nic : machine_.nics)
      if (!is_nic(nic)) return wrong("a NIC has values outside of its range");
    return absl::OkStatus();
  }

 private:
  /// -1: none.
  static bool is_index(int index, size_t count) { return index >= -1 && index < static_cast<int64_t>(count); }
  static bool is_rate(double rate) { return std::isfinite(rate) && rate >= 0; }

  absl::Status check_cores() const {
    if (machine_.cores.empty()) return wrong("it has no cpus");
    CpuSet seen;
    for (const Core& core : machine_.cores) {
      if (core.cpus.empty() || !is_index(core.package, machine_.packages.size()) ||
          !is_index(core.numa_node, machine_.numa_nodes.size()))
        return wrong("a core has no cpu, or a package or memory that is not there");
      for (const int cpu : core.cpus) {
        if (cpu < 0 || cpu > CpuSet::kMaxCpu) return wrong(fmt::format("a cpu has number {}", cpu));
        if (seen.contains(cpu)) return wrong(fmt::format("cpu {} belongs to two cores", cpu));
        seen.insert(cpu);
      }
      for (const int cpu : core.allowed) {
        const bool is_its_own = std::find(core.cpus.begin(), core.cpus.end(), cpu) != core.cpus.end();
        if (!is_its_own || !machine_.allowed.contains(cpu)) return wrong("a core allows a cpu that it does not have");
      }
    }
    return absl::OkStatus();
  }

  absl::Status check_nodes() const {
    std::set<int> numbers;
    for (const NumaNode& node : machine_.numa_nodes) {
      if (node.os_index < 0 || !is_index(node.package, machine_.packages.size()))
        return wrong("a NUMA node has a number or a package that is not there");
      if (!numbers.insert(node.os_index).second)
        return wrong(fmt::format("two NUMA nodes have number {}", node.os_index));
    }
    return absl::OkStatus();
  }

  bool is_place(const PciPlace& place) const {
    return is_index(place.bridge, machine_.bridges.size()) && is_index(place.package, machine_.packages.size()) &&
           is_index(place.numa_node, machine_.numa_nodes.size());
  }

  bool is_nic(const Nic& nic) const {
    const auto is_port = [](const NicPort& port) {
      return port.state >= PortState::unknown && port.state <= PortState::active && is_rate(port.gbit_per_s);
    };
    return is_place(nic.place) && is_rate(nic.pci_gbyte_per_s) &&
           std::all_of(nic.ports.begin(), nic.ports.end(), is_port);
  }

  const Machine& machine_;
};

}  // namespace

std::string write_machine(const Machine& machine) {
  // Bytes that are not UTF-8 are replaced: the parent refuses such names.
  return Json(machine).dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<Machine> parse_machine(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (!is_printable(json)) return wrong("a name has characters that are not printable");
    if (!is_convertible(json)) return wrong("a number is out of range");
    Machine machine = json.get<Machine>();
    GRADRAIL_RETURN_IF_ERROR(MachineChecker(machine).run());
    return machine;
  } catch (const std::exception& error) {  // the library's, and from_json() of a set
    return wrong(error.what());
  }
}

}  // namespace gradrail::topology
