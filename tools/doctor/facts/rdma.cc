// RDMA devices and their ports, as the kernel, libibverbs and the interfaces beside them describe them.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>

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
    const std::string address = host.data();
    // Link-local IPv6 addresses end with "%" and the interface, which a GID lacks.
    text += fmt::format("{} {}\n", each->ifa_name, address.substr(0, address.find('%')));
  }
  freeifaddrs(all);
  return text;
}

absl::StatusOr<std::vector<InterfaceAddress>> interface_addresses(const System& system) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string text, system.observe("addresses", list_addresses));
  std::vector<InterfaceAddress> addresses;
  for (const std::string& line : lines_of(text)) {
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
  bool on_interface = false;  ///< an interface of this host has the address

  /// Rank of a GID. Only RoCE v2 is used. A link-local address works within one network only.
  int rank() const { return type != "RoCE v2" ? 0 : !on_interface ? 1 : is_link_local(address) ? 2 : 3; }
};

/// The GIDs in use, in the order of their numbers.
std::vector<Gid> read_gids(const System& system, const std::string& port,
                           const std::vector<InterfaceAddress>& addresses) {
  std::vector<Gid> gids;
  for (const std::string& name : system.names(port + "/gids")) {
    const std::string text = system.line(port + "/gids/" + name);
    const std::optional<uint64_t> index = number_of(name);
    // Unused entries are zero.
    if (!index || text.find_first_not_of("0:") == std::string::npos) continue;
    Gid gid{.index = *index,
            .text = text,
            .type = system.line(port + "/gid_attrs/types/" + name),
            .interface = system.line(port + "/gid_attrs/ndevs/" + name),
            .address = address_of_gid(text)};
    gid.on_interface = std::any_of(addresses.begin(), addresses.end(), [&](const InterfaceAddress& each) {
      // Older kernels do not name the interface of a GID: then the address on any interface counts.
      return each.address == gid.address && (gid.interface.empty() || each.interface == gid.interface);
    });
    gids.push_back(std::move(gid));
  }
  // The sort is by number: the names are sorted as text, where 10 precedes 2.
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

void add_gids(const std::vector<Gid>& gids, Facts& port) {
  Gid best = gids.empty() ? Gid{} : gids.front();
  bool typed = false;
  std::string interface;
  for (const Gid& gid : gids) {
    if (gid.rank() > best.rank()) best = gid;
    typed = typed || !gid.type.empty();
    if (interface.empty()) interface = gid.interface;
  }
  port.set("gid", best.text);
  port.set("gid_index", best.index);
  port.set("gid_type", best.type);
  port.set("gid_address", best.address);
  port.set("gid_interface", best.interface);
  port.set_if("gids_typed", typed);
  port.set_if("gid_v2", best.rank() > 0);
  port.set_if("gid_on_interface", best.on_interface);
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

/// The largest RDMA packet that fits in a frame; 0: none. The kernel subtracts the headers of RoCE from the frame
/// (iboe_get_mtu): GRH 40, UDP 8, BTH 12, XRC 4, atomic header 28, checksum 4.
uint64_t packet_in(uint64_t interface_mtu) {
  constexpr uint64_t kRoceHeaders = 96, kLargest = 4096, kSmallest = 256;
  uint64_t size = kLargest;
  while (size >= kSmallest && size + kRoceHeaders > interface_mtu) size /= 2;
  return size >= kSmallest ? size : 0;
}

void add_mtu(const System& system, const absl::StatusOr<VerbsAnswer>& verbs, int number, Facts& port) {
  port.set("verbs_mtu_text", "");
  port.set("verbs_reason",
           verbs.ok() ? "libibverbs does not open the device" : std::string(message_of(verbs.status())));
  if (verbs.ok()) {
    if (const auto found = verbs->ports.find({port["device"], number}); found != verbs->ports.end()) {
      port.set("verbs_mtu", found->second.active);
      port.set("verbs_largest_mtu", found->second.most);
      port.set("verbs_mtu_text", fmt::format("; active {}", found->second.active));
    }
  }
  if (!port.has("interface")) return;
  const std::string file = fmt::format("/sys/class/net/{}/mtu", port["interface"]);
  port.set("mtu_file", file);
  if (const std::optional<uint64_t> mtu = system.number(file)) {
    port.set("mtu", *mtu);
    port.set("mtu_packet", packet_in(*mtu));
  }
}

std::string driver_of(const System& system, const std::string& name, const std::string& folder) {
  if (std::string driver = system.link_name(folder + "/device/driver"); !driver.empty()) return driver;
  // Made by software: nothing on a bus. Only their descriptions distinguish them.
  const std::string description = system.line(folder + "/node_desc");
  if (description.substr(0, 3) == "rxe" || name.substr(0, 3) == "rxe") return "rdma_rxe";
  if (name.substr(0, 3) == "siw") return "siw";
  return "";
}

/// The name in rdma-core for a driver; "": not known here.
std::string provider_of(const std::string& driver) {
  constexpr std::array<std::pair<const char*, const char*>, 15> kProviders = {{{"mlx5_core", "mlx5"},
                                                                               {"mlx4_core", "mlx4"},
                                                                               {"bnxt_en", "bnxt_re"},
                                                                               {"irdma", "irdma"},
                                                                               {"ice", "irdma"},
                                                                               {"i40e", "irdma"},
                                                                               {"idpf", "irdma"},
                                                                               {"efa", "efa"},
                                                                               {"hfi1", "hfi1verbs"},
                                                                               {"qede", "qedr"},
                                                                               {"cxgb4", "cxgb4"},
                                                                               {"mana", "mana"},
                                                                               {"erdma", "erdma"},
                                                                               {"rdma_rxe", "rxe"},
                                                                               {"siw", "siw"}}};
  for (const auto& [each, provider] : kProviders)
    if (driver == each) return provider;
  return "";
}

/// File of /dev/infiniband that opens a device.
std::string uverbs_of(const System& system, const std::string& device) {
  for (const std::string& name : system.names(kVerbs))
    if (system.line(fmt::format("{}/{}/ibdev", kVerbs, name)) == device) return printable(name);
  return "";
}

absl::StatusOr<std::string> try_access(const std::string& path) {
  // The kernel decides, not the mode bits: a list of access rights or a cgroup of devices can also refuse.
  if (access(path.c_str(), R_OK | W_OK) == 0) return std::string("granted");
  return std::string(std::strerror(errno));
}

void add_access(const System& system, Facts& device) {
  const std::string uverbs = device["uverbs"], node = "/dev/infiniband/" + uverbs;
  device.set("node", node);
  device.set("access", "");
  if (uverbs.empty()) return;
  if (!system.exists(node)) {
    device.set("access", "absent");
    return;
  }
  const absl::StatusOr<std::string> answer = system.observe("access-" + uverbs, [node] { return try_access(node); });
  device.set("access", answer.ok() ? printable(trimmed(*answer)) : "");
  device.set("access_error", std::string(message_of(answer.status())));
}

/// Adds rdma-core's file that names a provider, and the library of the provider.
void add_provider(const System& system, Facts& device) {
  const std::string provider = provider_of(device["driver"]);
  device.set("provider", provider);
  device.set("provider_file", fmt::format("/etc/libibverbs.d/{}.driver", provider));
  device.set_if("provider_named", system.exists(device["provider_file"]));
  for (const std::string& folder : library_folders(system)) {
    for (const std::string& name : system.names(folder + "/libibverbs"))
      if (!provider.empty() && name.starts_with(fmt::format("lib{}-rdmav", provider))) {
        device.set("provider_library", fmt::format("{}/libibverbs/{}", folder, name));
        return;
      }
  }
}

Facts device_facts(const System& system, const std::string& name, const absl::StatusOr<VerbsAnswer>& verbs) {
  Facts device;
  const std::string folder = fmt::format("{}/{}", kRdmaDevices, name);
  // A device made by software has no PCI address.
  const std::string slot = system.link_name(folder + "/device");
  const std::string pci_address = slot.find(':') == std::string::npos ? "" : slot;
  const std::string driver = driver_of(system, printable(name), folder);
  device.set("name", printable(name));
  device.set("folder", folder);
  device.set("pci_address", pci_address);
  device.set("driver", driver);
  device.set("what", fmt::format("{} ({}{}{})", printable(name), driver.empty() ? "driver ?" : driver,
                                 pci_address.empty() ? "" : ", ", pci_address));
  device.set("uverbs", uverbs_of(system, name));
  add_provider(system, device);
  add_access(system, device);
  if (verbs.ok())
    if (const auto found = verbs->opened.find(printable(name)); found != verbs->opened.end())
      device.set("verbs_error", found->second);
  return device;
}

Facts port_facts(const System& system, const Facts& device, const std::string& number,
                 const absl::StatusOr<VerbsAnswer>& verbs,
                 const absl::StatusOr<std::vector<InterfaceAddress>>& addresses) {
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
  port.set("addresses_error", std::string(message_of(addresses.status())));
  add_gids(read_gids(system, folder, addresses.ok() ? *addresses : std::vector<InterfaceAddress>{}), port);
  add_pkeys(system, port);
  add_mtu(system, verbs, static_cast<int>(number_of(number).value_or(0)), port);
  // InfiniBand's IPoIB interface stands below the same card.
  const std::vector<std::string> below = system.names(device["folder"] + "/device/net");
  const std::string interface = port.has("interface") || below.empty() ? port["interface"] : below.front();
  port.set("ip_interface", interface);
  port.set("ip_address", addresses.ok() && !interface.empty() ? address_on(interface, *addresses) : "");
  return port;
}

void summarize(const std::vector<PciDevice>& functions, Machine& machine) {
  Facts& host = machine.host;
  std::set<std::string> mtus;
  for (const Facts& port : machine.rdma_ports) {
    if (!port.has("active")) continue;
    host.set("active_port", "yes");
    // Only Ethernet has this fact: the subnet manager of an InfiniBand network sets its MTU.
    if (!port.has("ethernet")) host.set("active_infiniband_port", "yes");
    if (port.has("ethernet") && port.has("mtu")) mtus.insert(port["mtu"]);
  }
  host.set("different_mtus", mtus.size() < 2 ? "" : fmt::format("{}", fmt::join(mtus, " and ")));
  for (const Facts& device : machine.rdma_devices)
    if (device.has("uverbs")) host.set("uverbs", "yes");
  host.set_if("rdma", !machine.rdma_devices.empty());
  host.set_if("rdma_ports", !machine.rdma_ports.empty());
  if (!machine.rdma_devices.empty()) host.set("first_rdma_folder", machine.rdma_devices.front()["folder"]);
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
    const absl::StatusOr<std::vector<InterfaceAddress>> addresses = interface_addresses(system);
    for (const std::string& name : names) {
      Facts device = device_facts(system, name, verbs);
      device.set("user", machine.host["user"]);
      for (const std::string& number : system.names(device["folder"] + "/ports"))
        machine.rdma_ports.push_back(port_facts(system, device, number, verbs, addresses));
      machine.rdma_devices.push_back(std::move(device));
    }
  }
  summarize(functions, machine);
}

}  // namespace gradrail::tools::doctor
