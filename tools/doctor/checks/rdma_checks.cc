#include "tools/doctor/checks/rdma_checks.h"

#include <algorithm>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/doctor/facts/pci_facts.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kNoDevice = "no RDMA device";

/// Mellanox cards have both kinds of network class and come without RDMA when half of their driver is not loaded.
std::string cards_without_driver(System& system) {
  std::vector<std::string> cards;
  for (const PciDevice& device : read_pci_devices(system.tree())) {
    constexpr uint32_t kMellanox = 0x15b3;
    if (device.vendor == kMellanox && device.is_network()) cards.push_back(device.address);
  }
  return fmt::format("{}", fmt::join(cards, ", "));
}

Finding describe(const RdmaDevice& device) {
  const std::string what = fmt::format("{} ({}{}{})", device.name, device.driver.empty() ? "driver ?" : device.driver,
                                       device.pci_address.empty() ? "" : ", ", device.pci_address);
  if (device.uverbs.empty()) {
    return {State::broken, fmt::format("{}: nothing in /sys/class/infiniband_verbs names it", what),
            "no program can open it: it is being removed, or ib_uverbs is not loaded", "sudo modprobe ib_uverbs"};
  }
  return {State::ok, fmt::format("{} in {}, {}", what, device.folder, device.uverbs)};
}

Finding describe(const RdmaPort& port) {
  const std::string seen =
      fmt::format("{}: {} ({}), {}, {} in {}/state", port.name, port.state.empty() ? "no state" : port.state,
                  port.phys_state, port.link_layer, port.rate, port.folder);
  if (port.is_active()) return {State::ok, seen};
  const std::string lost = fmt::format("nothing travels over {}", port.name);
  // The text of /sys is "2: INIT": the digit is the value of enum ib_port_state.
  if (port.state.substr(0, 1) == "2") {  // INIT: the cable is there, no subnet manager runs
    return {State::broken, seen, lost + ": its link is up, but no subnet manager has configured it",
            "start a subnet manager: sudo systemctl start opensm, or the one in the switch; sminfo shows it"};
  }
  if (port.is_ethernet()) {
    return {State::broken, seen, lost,
            fmt::format("sudo ip link set {} up; then cable and switch port: ethtool {}",
                        port.interface().empty() ? "INTERFACE" : port.interface(),
                        port.interface().empty() ? "INTERFACE" : port.interface())};
  }
  return {
      State::broken, seen, lost,
      "check cable and switch port: ibstat, iblinkinfo; a port that was disabled: sudo ibportstate LID PORT enable"};
}

template <typename Look>
std::vector<Finding> of_ports(const std::vector<RdmaDevice>& devices, Look&& look) {
  std::vector<Finding> findings;
  for (const RdmaDevice& device : devices)
    for (const RdmaPort& port : device.ports) findings.push_back(look(device, port));
  return findings;
}

/// The port that is in order makes up for the one that is not cabled: most cards have two and use one.
void soften(std::vector<Finding>& findings) {
  const bool one_works =
      std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.state == State::ok; });
  if (!one_works) return;
  for (Finding& finding : findings)
    if (finding.state == State::broken) finding.state = State::warning;
}

Finding look_at_pkeys(Tree& tree, const RdmaPort& port) {
  const std::string folder = port.folder + "/pkeys";
  bool limited = false;
  for (const std::string& name : tree.names(folder)) {
    const std::optional<uint64_t> key = tree.number(folder + "/" + name, 16);
    // Bit 15 of a partition key marks a full member (InfiniBand Architecture Specification, volume 1).
    constexpr uint64_t kFullMember = 0x8000;
    if (key && (*key & kFullMember) != 0)
      return {State::ok, fmt::format("{}: {:#06x} in {}/{}, full member", port.name, *key, folder, printable(name))};
    // 0 marks a free entry of the table.
    limited = limited || (key && *key != 0);
  }
  if (limited) {
    return {State::broken, fmt::format("{}: only keys of limited members in {}", port.name, folder),
            "limited members of a partition reach full members only, not each other",
            "make these ports full members in the subnet manager: /etc/opensm/partitions.conf, "
            "Default=0x7fff,ipoib:ALL=full;"};
  }
  return {State::broken, fmt::format("{}: no key in {}", port.name, folder), "the port belongs to no partition",
          "add it to a partition in the subnet manager: /etc/opensm/partitions.conf"};
}

}  // namespace

Check check_rdma_devices(System& system, const std::vector<RdmaDevice>& devices) {
  std::vector<Finding> findings;
  for (const RdmaDevice& device : devices) findings.push_back(describe(device));
  if (!findings.empty()) return conclude(topic::kRdma, "rdma-devices", findings);
  const char* const lost = "ucx and ofi carry nothing by RDMA here; between hosts it is tcp";
  if (const std::string cards = cards_without_driver(system); !cards.empty()) {
    return conclude(
        topic::kRdma, "rdma-devices",
        {{State::missing, fmt::format("nothing in /sys/class/infiniband, but /sys/bus/pci/devices has {}", cards), lost,
          "sudo modprobe mlx5_ib (mlx4_ib for ConnectX-3); for good: echo mlx5_ib | sudo tee "
          "/etc/modules-load.d/mlx5_ib.conf"}});
  }
  return conclude(topic::kRdma, "rdma-devices",
                  {{State::missing, "nothing in /sys/class/infiniband, and no card in /sys/bus/pci/devices", lost,
                    "a card and its driver; to try it without: sudo rdma link add rxe0 type rxe netdev INTERFACE "
                    "(soft-RoCE, needs the kernel module rdma_rxe)"}});
}

Check check_rdma_ports(const std::vector<RdmaDevice>& devices) {
  if (devices.empty()) return not_applicable(topic::kRdma, "rdma-ports", kNoDevice);
  std::vector<Finding> findings =
      // A device without ports is an error of its driver, not a missing cable.
      of_ports(devices, [](const RdmaDevice&, const RdmaPort& port) { return describe(port); });
  if (findings.empty()) {
    return conclude(topic::kRdma, "rdma-ports",
                    {{State::broken, fmt::format("{}/ports is empty", devices.front().folder), "no port to use",
                      "reload the driver: sudo modprobe -r mlx5_ib && sudo modprobe mlx5_ib; then dmesg"}});
  }
  soften(findings);
  return conclude(topic::kRdma, "rdma-ports", std::move(findings));
}

Check check_rdma_pkeys(System& system, const std::vector<RdmaDevice>& devices) {
  if (devices.empty()) return not_applicable(topic::kRdma, "rdma-pkeys", kNoDevice);
  std::vector<Finding> findings;
  for (const RdmaDevice& device : devices)
    for (const RdmaPort& port : device.ports)
      // RoCE has the default key alone. On InfiniBand the subnet manager fills the table when it activates the port.
      if (!port.is_ethernet() && port.is_active()) findings.push_back(look_at_pkeys(system.tree(), port));
  if (findings.empty())
    return not_applicable(topic::kRdma, "rdma-pkeys", "partitions are InfiniBand's; no active port is");
  return conclude(topic::kRdma, "rdma-pkeys", std::move(findings));
}

std::vector<Check> check_rdma(System& system, const std::vector<RdmaDevice>& devices) {
  return {check_rdma_devices(system, devices),  check_rdma_ports(devices),
          check_rdma_gids(system, devices),     check_rdma_pkeys(system, devices),
          check_rdma_mtu(system, devices),      check_rdma_providers(system, devices),
          check_uverbs_access(system, devices), check_memlock(system)};
}

}  // namespace gradrail::tools::doctor
