#include "tools/doctor/facts/pci_facts.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "tools/doctor/text.h"

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
  // The root complex, "pci0000:15", is no bridge with an address of its own.
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(link, '/')))
    if (is_address(part)) bridges.push_back(part);
  if (!bridges.empty()) bridges.pop_back();  // itself
  return bridges;
}

}  // namespace

std::vector<PciDevice> read_pci_devices(Tree& tree) {
  std::vector<PciDevice> devices;
  for (const std::string& name : tree.names(kPciDevices)) {
    if (!is_address(name)) continue;
    PciDevice device{.address = name, .folder = fmt::format("{}/{}", kPciDevices, name)};
    device.vendor = static_cast<uint32_t>(tree.number(device.folder + "/vendor", 16).value_or(0));
    device.device = static_cast<uint32_t>(tree.number(device.folder + "/device", 16).value_or(0));
    device.device_class = static_cast<uint32_t>(tree.number(device.folder + "/class", 16).value_or(0));
    device.driver = tree.link_name(device.folder + "/driver");
    device.bridges = bridges_in(tree.link(device.folder));
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace gradrail::tools::doctor
