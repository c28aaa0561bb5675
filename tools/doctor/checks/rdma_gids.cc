#include <algorithm>

#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/checks/rdma_checks.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kGidsCheck = "rdma-gids";

std::string interface_or_word(const RdmaPort& port) {
  return port.interface().empty() ? "INTERFACE" : port.interface();
}

/// InfiniBand makes its one GID out of the subnet's prefix and the card's number.
Finding look_at_infiniband(const RdmaPort& port) {
  // The first GID is enough: others are aliases of it.
  if (!port.gids.empty())
    return {State::ok,
            fmt::format("{}: {} in {}/gids/{}", port.name, port.gids[0].text, port.folder, port.gids[0].index)};
  return {State::broken, fmt::format("{}: {}/gids has none", port.name, port.folder),
          "connections by rdma_cm and ofi's verbs find no source address",
          "the subnet manager sets it: sudo systemctl restart opensm, then ibv_devinfo -v"};
}

bool is_link_local(const std::string& address) { return address.compare(0, 5, "fe80:") == 0; }

Finding look_at_addresses(const RdmaPort& port, const std::vector<Gid>& second,
                          const absl::StatusOr<std::vector<InterfaceAddress>>& addresses) {
  const std::string table = port.folder + "/gids";
  if (!addresses.ok()) {
    return {State::unknown,
            fmt::format("{}: RoCE v2 in {}/{}; the interface's addresses: {}", port.name, table, second[0].index,
                        message_of(addresses.status())),
            "the GID may belong to an address that is gone", "compare: ip address, and rdma link"};
  }
  // A link-local address works within one network only, so any other address is preferred.
  const Gid* only_local = nullptr;
  for (const Gid& gid : second) {
    const std::string address = address_of_gid(gid.text);
    const bool there = std::any_of(addresses->begin(), addresses->end(), [&](const InterfaceAddress& each) {
      // Older kernels do not name the interface of a GID: then the address on any interface counts.
      return each.address == address && (gid.interface.empty() || each.interface == gid.interface);
    });
    if (!there) continue;
    if (is_link_local(address)) {
      only_local = &gid;
      continue;
    }
    return {State::ok,
            fmt::format("{}: RoCE v2 {} of {} in {}/{}", port.name, address, gid.interface, table, gid.index)};
  }
  const std::string remedy =
      fmt::format("give the interface an address that its peers reach: sudo ip address add 10.0.0.1/24 dev {}",
                  interface_or_word(port));
  if (only_local != nullptr) {
    return {State::warning,
            fmt::format("{}: RoCE v2 only with a link-local address in {}/{}", port.name, table, only_local->index),
            "no connection to hosts behind a router, and none to an IPv4 address of a cluster file", remedy};
  }
  return {State::broken,
          fmt::format("{}: RoCE v2 {} in {}/{}, which no interface of this host has (ip address)", port.name,
                      address_of_gid(second[0].text), table, second[0].index),
          "packets leave with a source address that no host answers: connections time out", remedy};
}

Finding look_at_ethernet(const RdmaPort& port, const absl::StatusOr<std::vector<InterfaceAddress>>& addresses) {
  std::vector<Gid> second;
  std::copy_if(port.gids.begin(), port.gids.end(), std::back_inserter(second),
               // The table lists each address twice, for RoCE v1 and v2; only v2 is used here.
               [](const Gid& gid) { return gid.type == "RoCE v2"; });
  if (!second.empty()) return look_at_addresses(port, second, addresses);
  const std::string table = port.folder + "/gid_attrs/types";
  if (port.gids.empty()) {
    return {State::broken, fmt::format("{}: {}/gids has none", port.name, port.folder),
            "nothing can be addressed over this port",
            fmt::format("sudo ip link set {0} up && sudo ip address add 10.0.0.1/24 dev {0}", interface_or_word(port))};
  }
  const bool typed = std::any_of(port.gids.begin(), port.gids.end(), [](const Gid& gid) { return !gid.type.empty(); });
  if (!typed) {
    return {State::unknown, fmt::format("{}: {} does not say which RoCE its GIDs are", port.name, table),
            "RoCE v1 is not routed, and many switches drop it", "show_gids, or rdma link show, of a newer kernel"};
  }
  return {State::broken, fmt::format("{}: only '{}' in {}/{}", port.name, port.gids[0].type, table, port.gids[0].index),
          "RoCE v1 frames pass no router and many switches drop them; peers that speak RoCE v2 are not reached",
          "a firmware and driver with RoCE v2: sudo mlxconfig -d MST_DEVICE set ROCE_CONTROL=2, and for rdma_cm: "
          "sudo cma_roce_mode -d " +
              port.name.substr(0, port.name.find(' ')) + " -p 1 -m 2"};
}

}  // namespace

Check check_rdma_gids(System& system, const std::vector<RdmaDevice>& devices) {
  if (devices.empty()) return not_applicable(topic::kRdma, kGidsCheck, "no RDMA device");
  const absl::StatusOr<std::vector<InterfaceAddress>> addresses = interface_addresses(system);
  std::vector<Finding> findings;
  for (const RdmaDevice& device : devices) {
    for (const RdmaPort& port : device.ports) {
      if (!port.is_active()) continue;  // rdma-ports says so; without a link there are no GIDs to be had
      findings.push_back(port.is_ethernet() ? look_at_ethernet(port, addresses) : look_at_infiniband(port));
    }
  }
  if (findings.empty()) return not_applicable(topic::kRdma, kGidsCheck, "no active port");
  return conclude(topic::kRdma, kGidsCheck, std::move(findings));
}

}  // namespace gradrail::tools::doctor
