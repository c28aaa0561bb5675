#include <algorithm>
#include <map>
#include <string_view>

#include "base/parse_number.h"
#include "topology/discover/hwloc.h"

namespace gradrail::topology {
namespace {

constexpr uint16_t kInfinibandClass = 0x0207;
constexpr uint16_t kFabricClass = 0x0208;
constexpr int kMaxPort = 254;  // a port's number is a byte, 0 and 255 mean other things

// An InfiniBand interface has 20 bytes of hardware address, Ethernet has 6; "aa:" per byte, the last without the colon.
constexpr size_t kInfinibandAddressLength = 20 * 3 - 1;

/// The number between "Port" and "State"; 0: another info.
int port_number(std::string_view name) {
  if (!name.starts_with("Port") || !name.ends_with("State")) return 0;
  name.remove_prefix(4);
  name.remove_suffix(std::min<size_t>(name.size(), 5));
  const int number = parse_number<int>(name).value_or(0);
  return number >= 1 && number <= kMaxPort ? number : 0;
}

/// The numbers of the InfiniBand specification, as the kernel and hwloc have them.
PortState port_state(std::string_view value) {
  constexpr PortState kStates[] = {PortState::unknown, PortState::down, PortState::init, PortState::armed,
                                   PortState::active};
  return value.size() == 1 && value[0] >= '1' && value[0] <= '4' ? kStates[value[0] - '0'] : PortState::unknown;
}

std::vector<NicPort> ports_of(hwloc_obj_t device) {
  std::map<int, NicPort> ports;
  for (unsigned i = 0; i < device->infos_count; ++i) {
    const hwloc_info_s& entry = device->infos[i];
    const int number = port_number(entry.name);
    if (number > 0) ports[number] = {.number = number, .state = port_state(entry.value)};
  }
  std::vector<NicPort> result;
  result.reserve(ports.size());
  for (const auto& [number, port] : ports) result.push_back(port);
  return result;
}

/// A saved machine has no field for it. The interface's address decides, else the local identifiers from a subnet
/// manager (Ethernet has none: 0), else the PCI class.
bool is_infiniband(hwloc_obj_t device, const hwloc_obj_t interface, uint16_t pci_class) {
  const std::string address = interface == nullptr ? "" : info(interface, "Address");
  if (!address.empty()) return address.size() == kInfinibandAddressLength;
  const std::string lid = info(device, "Port1LID");
  if (!lid.empty()) return lid != "0x0";
  return pci_class == kInfinibandClass || pci_class == kFabricClass;
}

/// The interface of the first port of a card with several interfaces.
hwloc_obj_t first_interface(const std::vector<hwloc_obj_t>& interfaces) {
  for (const hwloc_obj_t interface : interfaces)
    if (info(interface, "Port") == "1") return interface;
  return interfaces.empty() ? nullptr : interfaces.front();
}

std::vector<hwloc_obj_t> of_kind(const std::vector<hwloc_obj_t>& devices, hwloc_obj_osdev_type_t kind) {
  std::vector<hwloc_obj_t> result;
  for (const hwloc_obj_t device : devices)
    if (device->attr->osdev.type == kind && device->name != nullptr) result.push_back(device);
  return result;
}

Nic make_rdma_nic(hwloc_obj_t device, hwloc_obj_t interface, uint16_t pci_class) {
  Nic nic{.name = printable(device->name), .rdma = true, .ports = ports_of(device)};
  nic.infiniband = is_infiniband(device, interface, pci_class);
  if (interface != nullptr) {
    nic.interface = printable(interface->name);
    nic.address = info(interface, "Address");
  }
  if (nic.address.empty()) nic.address = info(device, "NodeGUID");
  return nic;
}

Nic make_plain_nic(hwloc_obj_t interface) {
  return {.name = printable(interface->name),
          .interface = printable(interface->name),
          .address = info(interface, "Address"),
          .ports = {NicPort{}}};
}

}  // namespace

void read_nics(hwloc_topology_t topology, Machine& machine) {
  for (hwloc_obj_t pci = nullptr; (pci = hwloc_get_next_pcidev(topology, pci)) != nullptr;) {
    const std::vector<hwloc_obj_t> devices = os_devices_below(pci);
    const std::vector<hwloc_obj_t> interfaces = of_kind(devices, HWLOC_OBJ_OSDEV_NETWORK);
    std::vector<Nic> nics;
    for (const hwloc_obj_t device : of_kind(devices, HWLOC_OBJ_OSDEV_OPENFABRICS))
      nics.push_back(make_rdma_nic(device, first_interface(interfaces), pci->attr->pcidev.class_id));
    if (nics.empty())
      for (const hwloc_obj_t interface : interfaces) nics.push_back(make_plain_nic(interface));
    for (Nic& nic : nics) {
      nic.place = place_of(topology, pci, machine);
      nic.pci_gbyte_per_s = pci->attr->pcidev.linkspeed;
      machine.nics.push_back(std::move(nic));
    }
  }
  sort_nics(machine);
}

void sort_nics(Machine& machine) {
  // NICs without a place (no bridge, address 0) are last.
  const auto key = [](const Nic& nic) {
    const bool placed = nic.place.bridge >= 0 || nic.place.address != PciAddress{};
    return std::tuple(!placed, nic.place.address, nic.name);
  };
  std::stable_sort(machine.nics.begin(), machine.nics.end(),
                   [&](const Nic& a, const Nic& b) { return key(a) < key(b); });
}

}  // namespace gradrail::topology
