// PCI functions, the links of the cards, the bridges above them, and address translation.
#include <algorithm>
#include <set>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "tools/doctor/facts/read.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kPciDevices = "/sys/bus/pci/devices";

/// "0000:19:00.0", and neither "pci0000:15" nor "..".
bool is_address(const std::string& text) {
  return text.size() >= 12 && std::count(text.begin(), text.end(), ':') == 2 &&
         text.find_first_not_of("0123456789abcdef:.") == std::string::npos && text.find('.') != std::string::npos;
}

/// ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0: the link to a device names all bridges above it.
std::vector<std::string> bridges_in(const std::string& link) {
  std::vector<std::string> bridges;
  // The root complex, "pci0000:15", is no bridge with an address.
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(link, '/')))
    if (is_address(part)) bridges.push_back(part);
  if (!bridges.empty()) bridges.pop_back();  // itself
  return bridges;
}

/// Little-endian, as all of the configuration space (PCI Local Bus Specification 3.0, 6.1).
uint32_t word_at(const std::string& bytes, size_t at, size_t count) {
  uint32_t word = 0;
  for (size_t i = 0; i < count; ++i) word |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  return word;
}

/// The control word of Access Control Services in a configuration space; none: the function has no ACS.
/// Source  PCI Express Base Specification: the list of extended capabilities begins at 0x100. An entry has an id of 16
///         bits, a version of 4 and the offset of the next entry of 12; the control word of ACS is at its offset 6.
std::optional<uint32_t> acs_control(const std::string& config) {
  constexpr size_t kFirst = 0x100, kWhole = 4096;
  constexpr uint32_t kAcs = 0x000d;
  size_t at = kFirst;
  // A list that points at itself would never end. The last entry has the offset 0.
  for (size_t steps = 0; steps < kWhole / 8 && at >= kFirst && at + 8 <= config.size(); ++steps) {
    const uint32_t header = word_at(config, at, 4);
    if ((header & 0xffff) == kAcs) return word_at(config, at + 6, 2);
    at = header >> 20;
  }
  return std::nullopt;
}

Facts card_facts(const System& system, const PciDevice& device) {
  Facts card;
  card.set("address", device.address);
  card.set("folder", device.folder);
  card.set_if("gpu", device.is_nvidia_gpu());
  card.set("speed", system.line(device.folder + "/current_link_speed"));
  card.set("max_speed", system.line(device.folder + "/max_link_speed"));
  card.set("width", system.line(device.folder + "/current_link_width"));
  card.set("max_width", system.line(device.folder + "/max_link_width"));
  const std::string group = system.link_name(device.folder + "/iommu_group");
  const std::string file = fmt::format("/sys/kernel/iommu_groups/{}/type", group);
  // Older kernels have no file for the type.
  const std::string type = group.empty() ? "" : system.line(file);
  card.set("iommu_file", file);
  card.set("iommu", group.empty() || !type.empty() ? type : "of unknown type");
  return card;
}

Facts bridge_facts(const System& system, const PciDevice& device) {
  Facts bridge;
  bridge.set("address", device.address);
  bridge.set("folder", device.folder);
  const std::string config = system.text(device.folder + "/config");
  // A user other than root gets 64 bytes; extended capabilities are behind 256.
  bridge.set_if("config_is_short", config.size() < 0x100);
  const uint32_t control = acs_control(config).value_or(0);
  // The bits send requests or completions between devices below up to the root instead of directly across.
  constexpr uint32_t kRedirects = 0x0c;
  bridge.set("acs_redirects", (control & kRedirects) != 0 ? fmt::format("{:#06x}", control) : "");
  return bridge;
}

}  // namespace

std::vector<PciDevice> read_pci_devices(const System& system) {
  std::vector<PciDevice> devices;
  for (const std::string& name : system.names(kPciDevices)) {
    if (!is_address(name)) continue;
    PciDevice device{.address = name, .folder = fmt::format("{}/{}", kPciDevices, name)};
    device.vendor = static_cast<uint32_t>(system.number(device.folder + "/vendor", 16).value_or(0));
    device.device_class = static_cast<uint32_t>(system.number(device.folder + "/class", 16).value_or(0));
    device.driver = system.link_name(device.folder + "/driver");
    device.bridges = bridges_in(system.link(device.folder));
    devices.push_back(std::move(device));
  }
  return devices;
}

void read_pci(const System& system, const std::vector<PciDevice>& functions, Machine& machine) {
  std::set<std::string> above;
  const auto add = [&](const PciDevice& device) {
    Facts card = card_facts(system, device);
    card.set("kernel_command_line", machine.host["kernel_command_line"]);
    machine.cards.push_back(std::move(card));
    above.insert(device.bridges.begin(), device.bridges.end());
  };
  for (const PciDevice& each : functions)
    if (each.is_nvidia_gpu()) add(each);
  for (const PciDevice& each : functions) {
    const bool rdma = std::any_of(machine.rdma_devices.begin(), machine.rdma_devices.end(),
                                  [&](const Facts& device) { return device["pci_address"] == each.address; });
    if (rdma) add(each);
  }
  // Bridges redirect what goes between GPU and NIC. A host without GPUs has no such traffic.
  for (const PciDevice& each : functions)
    if (machine.host.has("gpus") && above.count(each.address) != 0)
      machine.bridges.push_back(bridge_facts(system, each));
  machine.host.set_if("cards", !machine.cards.empty());
  machine.host.set_if("bridges", !machine.bridges.empty());
}

}  // namespace gradrail::tools::doctor
