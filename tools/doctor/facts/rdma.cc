// RDMA devices and their ports, as the kernel, libibverbs and the interfaces beside them describe them.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/doctor/facts/read.h"
#include "tools/doctor/facts/verbs.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kRdmaDevices = "/sys/class/infiniband";
constexpr const char* kVerbs = "/sys/class/infiniband_verbs";

struct InterfaceAddress {
  std::string interface;
  std::string address;  ///< numeric
};

absl::StatusOr<std::string> list_addresses() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return absl::UnavailableError(fmt::format("getifaddrs: {}", std::strerror(errno)));
  std::string text;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> host{};
    if (getnameinfo(each->ifa_addr, bytes, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    text += fmt::format("{} {}\n", each->ifa_name, host.data());
  }
  freeifaddrs(all);
  return text;
}

std::vector<InterfaceAddress> interface_addresses(const System& system) {
  std::vector<InterfaceAddress> addresses;
  for (const std::string& line : lines_of(system.observe("addresses", list_addresses).value_or(""))) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2) addresses.push_back({printable(words[0]), printable(words[1])});
  }
  return addresses;
}

bool is_link_local(const std::string& address) { return address.compare(0, 4, "fe80") == 0; }

/// The address at which a transport listens on this interface, IPv4 before IPv6. A link-local address needs a scope,
/// which the listen address of a transport cannot hold.
std::string address_on(const std::string& interface, const std::vector<InterfaceAddress>& addresses) {
  std::string found;
  for (const InterfaceAddress& each : addresses) {
    if (each.interface != interface || is_link_local(each.address)) continue;
    if (each.address.find(':') == std::string::npos) return each.address;
    if (found.empty()) found = each.address;
  }
  return found;
}

/// IP address of a RoCE v2 GID in the format of inet_ntop; "" if it is no GID.
std::string address_of_gid(const std::string& gid) {
  in6_addr bytes{};
  if (inet_pton(AF_INET6, gid.c_str(), &bytes) != 1) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  // RoCE stores an IPv4 address as ::ffff:a.b.c.d.
  if (IN6_IS_ADDR_V4MAPPED(&bytes)) return inet_ntop(AF_INET, &bytes.s6_addr[12], text.data(), text.size());
  return inet_ntop(AF_INET6, &bytes, text.data(), text.size());
}

struct Gid {
  uint64_t index = 0;
  std::string text;       ///< "fe80:0000:…", eight groups of four
  std::string type;       ///< "IB/RoCE v1", "RoCE v2"
  std::string interface;  ///< interface of the GID's network
  std::string address;

  /// Rank of a GID. Only RoCE v2 is used. A link-local address works within one network only.
  int rank() const { return type != "RoCE v2" ? 0 : is_link_local(address) ? 1 : 2; }
};

/// The GIDs in use, in the order of their numbers.
std::vector<Gid> read_gids(const System& system, const std::string& port) {
  std::vector<Gid> gids;
  for (const std::string& name : system.names(port + "/gids")) {
    const std::string text = system.line(port + "/gids/" + name);
    const std::optional<uint64_t> index = number_of(name);
    // Unused entries are zero.
    if (!index || text.find_first_not_of("0:") == std::string::npos) continue;
    gids.push_back({.index = *index,
                    .text = text,
                    .type = system.line(port + "/gid_attrs/types/" + name),
                    .interface = system.line(port + "/gid_attrs/ndevs/" + name),
                    .address = address_of_gid(text)});
  }
  // The sort is by number: the names are sorted as text, where 10 precedes 2.
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

void add_gids(const std::vector<Gid>& gids, Facts& port) {
  Gid best = gids.empty() ? Gid{} : gids.front();
  std::string interface;
  for (const Gid& gid : gids) {
    if (gid.rank() > best.rank()) best = gid;
    if (interface.empty()) interface = gid.interface;
  }
  port.set("gid", best.text);
  port.set("gid_index", best.index);
  port.set("gid_type", best.type);
  port.set("gid_address", best.address);
  port.set_if("gid_v2", best.rank() > 0);
  port.set_if("gid_link_local", is_link_local(best.address));
  port.set("interface", interface);
  port.set("interface_name", interface.empty() ? "INTERFACE" : interface);
}

void add_pkeys(const System& system, Facts& port) {
  const std::string folder = port["folder"] + "/pkeys";
  for (const std::string& name : system.names(folder)) {
    const std::optional<uint64_t> key = system.number(folder + "/" + name, 16);
    // Bit 15 of a partition key marks a full member (InfiniBand Architecture Specification, volume 1). 0 marks a free
    // entry of the table.
    constexpr uint64_t kFullMember = 0x8000;
    if (!key || *key == 0) continue;
    if ((*key & kFullMember) == 0) {
      port.set("pkey_limited", "yes");
      continue;
    }
    port.set("pkey", fmt::format("{:#06x}", *key));
    port.set("pkey_index", printable(name));
    return;
  }
}

void add_mtu(const absl::StatusOr<VerbsAnswer>& verbs, int number, Facts& port) {
  if (!verbs.ok()) return;
  const auto found = verbs->ports.find({port["device"], number});
  if (found == verbs->ports.end()) return;
  port.set("mtu", found->second.active);
  port.set("largest_mtu", found->second.most);
}

/// File of /dev/infiniband that opens a device; "": the kernel has none.
std::string uverbs_of(const System& system, const std::string& device) {
  for (const std::string& name : system.names(kVerbs))
    if (system.line(fmt::format("{}/{}/ibdev", kVerbs, name)) == device) return printable(name);
  return "";
}

Facts device_facts(const System& system, const std::string& name, const absl::StatusOr<VerbsAnswer>& verbs) {
  Facts device;
  const std::string folder = fmt::format("{}/{}", kRdmaDevices, name);
  const std::string driver = system.link_name(folder + "/device/driver");
  const std::string pci_address = system.link_name(folder + "/device");
  device.set("name", printable(name));
  device.set("folder", folder);
  device.set("pci_address", pci_address);
  // soft-RoCE and siw have neither a bus nor a driver.
  device.set("what", pci_address.empty() ? fmt::format("{} (software)", printable(name))
                                         : fmt::format("{} ({}, {})", printable(name), driver, pci_address));
  const std::string uverbs = uverbs_of(system, name), node = "/dev/infiniband/" + uverbs;
  device.set("uverbs", uverbs);
  device.set("node", node);
  device.set_if("node_exists", system.exists(node));
  device.set("verbs_reason", std::string(message_of(verbs.status())));
  if (!verbs.ok()) return device;
  const auto found = verbs->opened.find(printable(name));
  if (found == verbs->opened.end()) return device;
  device.set_if("opened", found->second.empty());
  device.set("open_error", found->second);
  return device;
}

Facts port_facts(const System& system, const Facts& device, const std::string& number,
                 const absl::StatusOr<VerbsAnswer>& verbs, const std::vector<InterfaceAddress>& addresses) {
  Facts port;
  const std::string folder = device["folder"] + "/ports/" + number;
  const std::string state = system.line(folder + "/state");
  port.set("device", device["name"]);
  port.set("name", fmt::format("{} port {}", device["name"], printable(number)));
  port.set("folder", folder);
  port.set("state_text", state.empty() ? "no state" : state);
  port.set("phys_state", system.line(folder + "/phys_state"));
  port.set("rate", system.line(folder + "/rate"));
  port.set("link_layer", system.line(folder + "/link_layer"));
  port.set_if("ethernet", port["link_layer"] == "Ethernet");
  // The text of /sys is "2: INIT": the digit is the value of enum ib_port_state.
  port.set_if("active", state.substr(0, 1) == "4");
  port.set_if("without_subnet_manager", state.substr(0, 1) == "2");
  add_gids(read_gids(system, folder), port);
  add_pkeys(system, port);
  add_mtu(verbs, static_cast<int>(number_of(number).value_or(0)), port);
  // InfiniBand's IPoIB interface stands below the same card.
  const std::vector<std::string> below = system.names(device["folder"] + "/device/net");
  const std::string interface = port.has("interface") || below.empty() ? port["interface"] : below.front();
  port.set("ip_interface", interface);
  port.set("ip_address", interface.empty() ? "" : address_on(interface, addresses));
  return port;
}

void summarize(const std::vector<PciDevice>& functions, Machine& machine) {
  Facts& host = machine.host;
  for (const Facts& port : machine.rdma_ports) {
    if (!port.has("active")) continue;
    host.set("active_port", "yes");
    if (!port.has("ethernet")) host.set("active_infiniband_port", "yes");
  }
  host.set_if("rdma", !machine.rdma_devices.empty());
  // Mellanox cards have both kinds of network class, and have no RDMA if half of their driver is not loaded.
  std::vector<std::string> idle;
  constexpr uint32_t kMellanox = 0x15b3;
  for (const PciDevice& each : functions)
    if (each.vendor == kMellanox && each.is_network()) idle.push_back(each.address);
  host.set("idle_cards", fmt::format("{}", fmt::join(idle, ", ")));
}

}  // namespace

void read_rdma(const System& system, const std::vector<PciDevice>& functions, Machine& machine) {
  std::vector<std::string> names = system.names(kRdmaDevices);
  std::erase_if(names,
                [&](const std::string& name) { return !system.is_folder(fmt::format("{}/{}", kRdmaDevices, name)); });
  if (!names.empty()) {
    const absl::StatusOr<VerbsAnswer> verbs = probe_verbs(system);
    const std::vector<InterfaceAddress> addresses = interface_addresses(system);
    for (const std::string& name : names) {
      Facts device = device_facts(system, name, verbs);
      for (const std::string& number : system.names(device["folder"] + "/ports"))
        machine.rdma_ports.push_back(port_facts(system, device, number, verbs, addresses));
      machine.rdma_devices.push_back(std::move(device));
    }
  }
  summarize(functions, machine);
}

}  // namespace gradrail::tools::doctor
