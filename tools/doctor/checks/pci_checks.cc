#include "tools/doctor/checks/pci_checks.h"

#include <algorithm>
#include <set>

#include "fmt/format.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kNone = "neither an NVIDIA GPU nor an RDMA card on the PCI bus";

/// The PCI functions that gradients pass: GPUs and RDMA cards.
std::vector<PciDevice> endpoints(Tree& tree, const GpuHost& host, const std::vector<RdmaDevice>& devices) {
  std::vector<PciDevice> found;
  for (const GpuFacts& gpu : host.gpus)
    if (gpu.pci) found.push_back(*gpu.pci);
  for (const PciDevice& each : read_pci_devices(tree)) {
    const bool rdma = std::any_of(devices.begin(), devices.end(),
                                  [&](const RdmaDevice& device) { return device.pci_address == each.address; });
    if (rdma) found.push_back(each);
  }
  return found;
}

/// Little-endian, as all of the configuration space (PCI Local Bus Specification 3.0, 6.1).
uint32_t word_at(const std::string& bytes, size_t at, size_t count) {
  uint32_t word = 0;
  for (size_t i = 0; i < count; ++i) word |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  return word;
}

/// A link that came up narrow or slow. GPUs that idle lower their speed, so for them only the width counts.
Finding look_at_link(Tree& tree, const PciDevice& device) {
  const auto read = [&](const char* name) { return tree.line(device.folder + "/" + name); };
  const std::string speed = read("current_link_speed"), most_speed = read("max_link_speed");
  const std::string width = read("current_link_width"), most_width = read("max_link_width");
  if (speed.empty() || width.empty()) {
    return {State::unknown, fmt::format("{}: no {}/current_link_speed", device.address, device.folder),
            "how fast its link is is not known", "sudo lspci -vv | grep LnkSta:"};
  }
  const std::string what = fmt::format("{}: x{} of x{}, {} of {} in {}/current_link_*", device.address, width,
                                       most_width, speed, most_speed, device.folder);
  const bool slow = !device.is_nvidia_gpu() && !most_speed.empty() && speed != most_speed;
  const bool narrow = !most_width.empty() && width != most_width;
  if (!slow && !narrow) return {State::ok, what};
  return {State::warning, what, "less bandwidth than card and slot can have",
          "reinsert the card, or use a slot with more lanes: sudo lspci -vv -s " + device.address + " | grep LnkSta"};
}

Finding look_at_acs(const PciDevice& bridge, const AcsControl& acs) {
  if (acs.found == AcsControl::Found::not_readable) {
    return {State::unknown, fmt::format("{}/config: only its first 64 bytes may be read", bridge.folder),
            "bridges may send traffic between GPU and NIC up to the root", "sudo gradrail doctor"};
  }
  if (!acs.redirects()) return {State::ok, fmt::format("{}: no redirect ({}/config)", bridge.address, bridge.folder)};
  return {
      State::warning,
      fmt::format("{}: redirects peers' requests or completions ({}/config, ACS control {:#06x})", bridge.address,
                  bridge.folder, acs.control),
      "what goes between GPU and NIC goes up to the root and back: slower, and with an IOMMU it may fail",
      fmt::format("where no virtual machines need it: sudo setpci -s {} ECAP_ACS+0x6.w=0000 after each boot, or the "
                  "kernel parameter pci=disable_acs_redir={} (NCCL user guide, Troubleshooting, ACS)",
                  bridge.address, bridge.address)};
}

Check check_acs(Tree& tree, const std::vector<PciDevice>& ends) {
  std::set<std::string> above;
  // Bridges are counted once, although several devices lie below them.
  for (const PciDevice& each : ends) above.insert(each.bridges.begin(), each.bridges.end());
  if (ends.empty()) return not_applicable(topic::kPci, "pci-acs", kNone);
  std::vector<Finding> findings;
  for (const PciDevice& bridge : read_pci_devices(tree))
    if (above.count(bridge.address) != 0) findings.push_back(look_at_acs(bridge, read_acs(tree, bridge)));
  if (findings.empty()) return not_applicable(topic::kPci, "pci-acs", "no bridges above them in /sys/bus/pci/devices");
  return conclude(topic::kPci, "pci-acs", std::move(findings));
}

/// "identity", "DMA", "DMA-FQ"; "" when no IOMMU has the device.
std::string iommu_type(Tree& tree, const PciDevice& device, std::string& file) {
  const std::string group = tree.link_name(device.folder + "/iommu_group");
  if (group.empty()) return "";
  file = fmt::format("/sys/kernel/iommu_groups/{}/type", group);
  // Older kernels have no file for the type.
  const std::string type = tree.line(file);
  return type.empty() ? "of unknown type" : type;
}

Check check_iommu(Tree& tree, const std::vector<PciDevice>& ends) {
  const char* const name = "iommu";
  if (ends.empty()) return not_applicable(topic::kPci, name, kNone);
  std::vector<Finding> findings;
  for (const PciDevice& device : ends) {
    std::string file;
    const std::string type = iommu_type(tree, device, file);
    if (type.empty()) {
      findings.push_back({State::ok, fmt::format("{}: no {}/iommu_group", device.address, device.folder)});
    } else if (type == "identity") {
      findings.push_back({State::ok, fmt::format("{}: {}: identity", device.address, file)});
    } else {
      findings.push_back(
          {State::warning,
           fmt::format("{}: {}: {} (/proc/cmdline: {})", device.address, file, type, tree.line("/proc/cmdline")),
           "every transfer is translated: slower, and peer-memory transfers between GPU and NIC fail or "
           "go astray",
           "the kernel parameter iommu=pt (with intel_iommu=on or amd_iommu=on), in GRUB_CMDLINE_LINUX of "
           "/etc/default/grub, then sudo update-grub and reboot"});
    }
  }
  return conclude(topic::kPci, name, std::move(findings));
}

}  // namespace

AcsControl read_acs(Tree& tree, const PciDevice& device) {
  // Extended capabilities are a list that begins at 0x100: id 16 bits, version 4 bits, next offset 12 bits.
  constexpr size_t kFirst = 0x100, kWhole = 4096;
  constexpr uint32_t kAcs = 0x000d;
  const std::string config = tree.read(device.folder + "/config").text;
  // A user other than root gets 64 bytes; extended capabilities lie behind 256, and not every function has them.
  if (config.size() < kFirst) return {AcsControl::Found::not_readable};
  // A list that points at itself would never end.
  size_t at = kFirst;
  for (size_t steps = 0; steps < kWhole / 8 && at >= kFirst && at + 8 <= config.size(); ++steps) {
    const uint32_t header = word_at(config, at, 4);
    if ((header & 0xffff) == kAcs) {
      // The control word of ACS is at offset 6 of the capability (PCI Express Base Specification).
      return {AcsControl::Found::yes, static_cast<uint16_t>(word_at(config, at + 6, 2))};
    }
    // The last entry has the offset 0, which ends the loop.
    at = header >> 20;
  }
  return {};
}

std::vector<Check> check_pci(System& system, const GpuHost& host, const std::vector<RdmaDevice>& devices) {
  Tree& tree = system.tree();
  const std::vector<PciDevice> ends = endpoints(tree, host, devices);
  std::vector<Finding> links;
  for (const PciDevice& device : ends) links.push_back(look_at_link(tree, device));
  const Check link =
      links.empty() ? not_applicable(topic::kPci, "pci-link", kNone) : conclude(topic::kPci, "pci-link", links);
  return {link, check_acs(tree, ends), check_iommu(tree, ends)};
}

}  // namespace gradrail::tools::doctor
