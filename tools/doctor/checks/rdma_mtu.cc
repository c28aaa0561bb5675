#include <algorithm>
#include <set>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tools/doctor/checks/rdma_checks.h"
#include "tools/doctor/proofs/verbs_probe.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kMtuCheck = "rdma-mtu";

/// Bytes that the kernel subtracts from an Ethernet frame for RoCE's packet size (iboe_get_mtu). GRH 40, UDP 8, BTH
/// 12, XRC 4, atomic header 28, checksum 4.
constexpr uint64_t kRoceHeaders = 96;
/// The sizes are powers of two from 256 to 4096 (enum ib_mtu).
constexpr uint64_t kLargest = 4096;

/// The largest of RDMA's packet sizes that fits, 0: none.
uint64_t fits(uint64_t interface_mtu) {
  uint64_t size = kLargest;
  while (size >= 256 && size + kRoceHeaders > interface_mtu) size /= 2;
  return size >= 256 ? size : 0;
}

class MtuCheck {
 public:
  explicit MtuCheck(System& system) : tree_(system.tree()), verbs_(probe_verbs(system)) {}

  Finding look_at(const RdmaDevice& device, const RdmaPort& port) {
    const VerbsAnswer::Mtu* const reported = asked(device, port);
    if (port.is_ethernet()) return look_at_ethernet(port, reported);
    if (reported == nullptr) {
      return {State::unknown, fmt::format("{}: {}", port.name, reason()),
              "whether packets are as large as they could be is not known", "ibv_devinfo | grep mtu"};
    }
    const std::string what =
        fmt::format("{}: active {}, largest {} (libibverbs)", port.name, reported->active, reported->most);
    if (reported->active >= reported->most) return {State::ok, what};
    return {State::warning, what, "more and smaller packets than the card could send",
            "let the subnet manager raise it: mtu=5 (4096) in /etc/opensm/partitions.conf"};
  }

  /// Ends that cut packets unlike each other lose the larger ones.
  void compare(std::vector<Finding>& findings) const {
    // A set: equal MTUs give one element.
    if (seen_.size() < 2) return;
    findings.push_back(
        {State::warning,
         fmt::format("interfaces of active ports have MTUs {} (/sys/class/net/*/mtu)", fmt::join(seen_, " and ")),
         "two ports of one network with unlike MTUs lose large packets",
         "the same MTU on all interfaces and switch ports of one network: sudo ip link set INTERFACE mtu "
         "4200"});
  }

 private:
  const VerbsAnswer::Mtu* asked(const RdmaDevice& device, const RdmaPort& port) const {
    if (!verbs_.ok()) return nullptr;
    const auto found = verbs_->ports.find({device.name, port.number});
    return found == verbs_->ports.end() ? nullptr : &found->second;
  }

  std::string reason() const {
    return verbs_.ok() ? "libibverbs does not open the device" : std::string(message_of(verbs_.status()));
  }

  Finding look_at_ethernet(const RdmaPort& port, const VerbsAnswer::Mtu* reported) {
    const std::string file = fmt::format("/sys/class/net/{}/mtu", port.interface());
    const std::optional<uint64_t> interface_mtu = tree_.number(file);
    if (port.interface().empty() || !interface_mtu) {
      return {State::unknown, fmt::format("{}: no interface in {}/gid_attrs/ndevs", port.name, port.folder),
              "RoCE takes its packet size from an interface", "ip link; rdma link"};
    }
    // Only Ethernet: the MTU of an InfiniBand network comes from its subnet manager.
    seen_.insert(*interface_mtu);
    const uint64_t possible = fits(*interface_mtu);
    const std::string what =
        fmt::format("{}: {} is {}, enough for RDMA packets of {}{}", port.name, file, *interface_mtu, possible,
                    reported == nullptr ? "" : fmt::format("; active {}", reported->active));
    if (reported != nullptr && reported->active < possible) {
      return {State::warning, what, "the card sends smaller packets than its interface allows",
              fmt::format("set the interface's MTU again, the card follows: sudo ip link set {} mtu {}",
                          port.interface(), *interface_mtu)};
    }
    if (possible >= kLargest) return {State::ok, what};
    return {State::warning, what, "more and smaller packets than RoCE could send",
            fmt::format("sudo ip link set {} mtu 4200 (or 9000), on every host and switch port of this network",
                        port.interface())};
  }

  Tree& tree_;
  const absl::StatusOr<VerbsAnswer> verbs_;
  std::set<uint64_t> seen_;  ///< of Ethernet interfaces
};

}  // namespace

Check check_rdma_mtu(System& system, const std::vector<RdmaDevice>& devices) {
  if (devices.empty()) return not_applicable(topic::kRdma, kMtuCheck, "no RDMA device");
  MtuCheck check(system);
  std::vector<Finding> findings;
  for (const RdmaDevice& device : devices)
    for (const RdmaPort& port : device.ports)
      if (port.is_active()) findings.push_back(check.look_at(device, port));
  if (findings.empty()) return not_applicable(topic::kRdma, kMtuCheck, "no active port");
  check.compare(findings);
  return conclude(topic::kRdma, kMtuCheck, std::move(findings));
}

}  // namespace gradrail::tools::doctor
