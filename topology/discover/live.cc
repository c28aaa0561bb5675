#include "topology/discover/live.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/read_file.h"
#include "topology/discover/hwloc.h"

namespace gradrail::topology {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// The number a line begins with; 0: none. "inf" and "nan" are no rates.
double number_of(std::string_view line) {
  double number = 0;
  std::from_chars(line.data(), line.data() + line.size(), number);
  return number > 0 && std::isfinite(number) ? number : 0;
}

/// "4: ACTIVE".
PortState rdma_state(std::string_view line) {
  switch (line.empty() ? '0' : line.front()) {
    case '1':
      return PortState::down;
    case '2':
      return PortState::init;
    case '3':
      return PortState::armed;
    case '4':
      return PortState::active;
    default:
      return PortState::unknown;
  }
}

PortState interface_state(const fs::path& interface) {
  const std::string state = first_line(interface / "operstate");
  if (state == "up") return PortState::active;
  if (state != "unknown" && !state.empty()) return PortState::down;
  // Some drivers do not keep operstate; all of them keep carrier.
  return first_line(interface / "carrier") == "1" ? PortState::active : PortState::unknown;
}

std::vector<NicPort> rdma_ports(const fs::path& device) {
  std::vector<NicPort> ports;
  for (const std::string& name : names_in(device / "ports")) {
    const fs::path port = device / "ports" / name;
    ports.push_back({.number = static_cast<int>(number_of(name)),
                     .state = rdma_state(first_line(port / "state")),
                     .gbit_per_s = number_of(first_line(port / "rate"))});
  }
  std::sort(ports.begin(), ports.end(), [](const NicPort& a, const NicPort& b) { return a.number < b.number; });
  return ports;
}

/// The interface below an RDMA device: the kernel names it for Ethernet; soft-RoCE has it as its parent.
std::string interface_of(const fs::path& device) {
  for (const fs::path& file : {device / "ports/1/gid_attrs/ndevs/0", device / "parent"})
    if (std::string name = first_line(file); !name.empty()) return name;
  const std::vector<std::string> names = names_in(device / "device/net");
  return names.empty() ? "" : names.front();
}

void add_rdma_facts(const fs::path& device, Nic& nic) {
  if (const std::string layer = first_line(device / "ports/1/link_layer"); !layer.empty())
    nic.infiniband = layer == "InfiniBand";
  if (std::vector<NicPort> ports = rdma_ports(device); !ports.empty()) nic.ports = std::move(ports);
  if (nic.interface.empty()) nic.interface = printable(interface_of(device).c_str());
}

void add_interface_facts(const fs::path& interface, Nic& nic) {
  if (nic.address.empty()) nic.address = printable(first_line(interface / "address").c_str());
  if (nic.rdma) return;
  constexpr double kMbitPerGbit = 1000;
  nic.ports = {
      {.state = interface_state(interface), .gbit_per_s = number_of(first_line(interface / "speed")) / kMbitPerGbit}};
}

bool has_nic(const Machine& machine, bool rdma, const std::string& name) {
  return std::any_of(machine.nics.begin(), machine.nics.end(), [&](const Nic& nic) {
    // An interface of an RDMA device is listed with that device.
    return rdma ? nic.rdma && nic.name == name : nic.interface == name && nic.place.bridge >= 0;
  });
}

void add_missing_nics(const fs::path& sys, Machine& machine) {
  for (const std::string& name : names_in(sys / "class/net")) {
    // Interfaces without a device are software: lo, bridges, veth. Radio is too slow for gradients.
    const fs::path interface = sys / "class/net" / name;
    if (!is_there(interface / "device") || is_there(interface / "wireless") || has_nic(machine, false, name)) continue;
    machine.nics.push_back({.name = printable(name.c_str()), .interface = printable(name.c_str())});
  }
  for (const std::string& name : names_in(sys / "class/infiniband"))
    if (!has_nic(machine, true, name)) machine.nics.push_back({.name = printable(name.c_str()), .rdma = true});
}

}  // namespace

void add_live_facts(const std::string& sys, Machine& machine) {
  add_missing_nics(sys, machine);
  for (Nic& nic : machine.nics) {
    if (nic.rdma) add_rdma_facts(fs::path(sys) / "class/infiniband" / nic.name, nic);
    if (!nic.interface.empty()) add_interface_facts(fs::path(sys) / "class/net" / nic.interface, nic);
  }
  sort_nics(machine);
}

}  // namespace gradrail::topology
