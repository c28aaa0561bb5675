#include "tools/doctor/facts/rdma_facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kRdmaDevices = "/sys/class/infiniband";
constexpr const char* kVerbs = "/sys/class/infiniband_verbs";

bool is_zero(const std::string& gid) { return gid.find_first_not_of("0:") == std::string::npos; }

std::vector<Gid> read_gids(Tree& tree, const std::string& port) {
  std::vector<Gid> gids;
  for (const std::string& name : tree.names(port + "/gids")) {
    const std::string text = tree.line(port + "/gids/" + name);
    const std::optional<uint64_t> index = number_of(name);
    if (!index || text.empty() || is_zero(text)) continue;  // unused entries
    gids.push_back({.index = static_cast<int>(*index),
                    .text = text,
                    .type = tree.line(port + "/gid_attrs/types/" + name),
                    .interface = tree.line(port + "/gid_attrs/ndevs/" + name)});
  }
  // As numbers: the names are sorted as text, where 10 comes before 2.
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

RdmaPort read_port(Tree& tree, const RdmaDevice& device, const std::string& number) {
  const std::string folder = device.folder + "/ports/" + number;
  return {.folder = folder,
          .name = fmt::format("{} port {}", device.name, printable(number)),
          .number = static_cast<int>(number_of(number).value_or(0)),
          .state = tree.line(folder + "/state"),
          .phys_state = tree.line(folder + "/phys_state"),
          .rate = tree.line(folder + "/rate"),
          .link_layer = tree.line(folder + "/link_layer"),
          .gids = read_gids(tree, folder)};
}

std::string driver_of(Tree& tree, const RdmaDevice& device) {
  if (std::string driver = tree.link_name(device.folder + "/device/driver"); !driver.empty()) return driver;
  // Made by software: nothing on a bus. Only their descriptions distinguish them.
  const std::string description = tree.line(device.folder + "/node_desc");
  if (description.substr(0, 3) == "rxe" || device.name.substr(0, 3) == "rxe") return "rdma_rxe";
  if (device.name.substr(0, 3) == "siw") return "siw";
  return "";
}

/// Which of /dev/infiniband's files opens a device.
std::string uverbs_of(Tree& tree, const std::string& device) {
  for (const std::string& name : tree.names(kVerbs))
    if (tree.line(fmt::format("{}/{}/ibdev", kVerbs, name)) == device) return printable(name);
  return "";
}

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
    std::string address = host.data();
    // Link-local IPv6 addresses end with "%" and the interface, which a GID lacks.
    text += fmt::format("{} {}\n", each->ifa_name, address.substr(0, address.find('%')));
  }
  freeifaddrs(all);
  return text;
}

}  // namespace

std::string RdmaPort::interface() const {
  for (const Gid& gid : gids)
    if (!gid.interface.empty()) return gid.interface;
  return "";
}

std::vector<RdmaDevice> read_rdma_devices(Tree& tree) {
  std::vector<RdmaDevice> devices;
  for (const std::string& name : tree.names(kRdmaDevices)) {
    RdmaDevice device{.name = printable(name), .folder = fmt::format("{}/{}", kRdmaDevices, name)};
    if (!tree.is_folder(device.folder)) continue;
    // A device made by software has no PCI address.
    if (const std::string slot = tree.link_name(device.folder + "/device"); slot.find(':') != std::string::npos)
      device.pci_address = slot;
    device.driver = driver_of(tree, device);
    device.uverbs = uverbs_of(tree, name);
    for (const std::string& port : tree.names(device.folder + "/ports"))
      device.ports.push_back(read_port(tree, device, port));
    devices.push_back(std::move(device));
  }
  return devices;
}

std::string provider_of(const RdmaDevice& device) {
  // The kernel's driver of the PCI function, and rdma-core's name for what drives the device from user space.
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
  for (const auto& [driver, provider] : kProviders)
    if (device.driver == driver) return provider;
  return "";
}

absl::StatusOr<std::vector<InterfaceAddress>> interface_addresses(System& system) {
  GRADRAIL_ASSIGN_OR_RETURN(const std::string text, system.observe("addresses", list_addresses));
  std::vector<InterfaceAddress> addresses;
  for (const std::string& line : lines_of(text)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2) addresses.push_back({printable(words[0]), printable(words[1])});
  }
  return addresses;
}

std::string address_of_gid(const std::string& gid) {
  in6_addr bytes{};
  if (inet_pton(AF_INET6, gid.c_str(), &bytes) != 1) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  // RoCE stores an IPv4 address as ::ffff:a.b.c.d.
  if (IN6_IS_ADDR_V4MAPPED(&bytes)) return inet_ntop(AF_INET, &bytes.s6_addr[12], text.data(), text.size());
  return inet_ntop(AF_INET6, &bytes, text.data(), text.size());
}

}  // namespace gradrail::tools::doctor
