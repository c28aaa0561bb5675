#include <algorithm>
#include <optional>
#include <string_view>

#include "base/parse_number.h"
#include "fmt/format.h"
#include "topology/discover/hwloc.h"

namespace gradrail::topology {
namespace {

constexpr uint16_t kNvidia = 0x10de;
constexpr uint16_t kAmd = 0x1002;
constexpr uint16_t kIntel = 0x8086;

// PCI classes, https://pci-ids.ucw.cz/read/PD.
constexpr uint16_t kVga = 0x0300;
constexpr uint16_t k3d = 0x0302;
constexpr uint16_t kOtherDisplay = 0x0380;
constexpr uint16_t kAccelerator = 0x1200;

/// GPU libraries that hwloc uses, in the order in which their names are preferred.
struct Library {
  std::string_view backend, prefix;
};
constexpr Library kLibraries[] = {{"CUDA", "cuda"}, {"NVML", "nvml"}, {"RSMI", "rsmi"}, {"LevelZero", "ze"}};
constexpr size_t kCuda = 0;

/// The number behind a prefix: "cuda3" is 3.
std::optional<int> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::optional<int> number = parse_number<int>(name.substr(prefix.size()));
  return number && *number >= 0 ? number : std::nullopt;
}

/// Library that made a device of the system; nullopt: none of a GPU. Files of hwloc 1 have no Backend in it.
std::optional<size_t> library_of(hwloc_obj_t device) {
  const std::string kind = info(device, "LevelZeroDeviceType");
  if (!kind.empty() && kind != "GPU") return std::nullopt;
  for (size_t i = 0; i < std::size(kLibraries); ++i)
    if (device->name != nullptr && number_after(device->name, kLibraries[i].prefix)) return i;
  return std::nullopt;
}

Vendor vendor_of(uint16_t id) {
  switch (id) {
    case kNvidia:
      return Vendor::nvidia;
    case kAmd:
      return Vendor::amd;
    case kIntel:
      return Vendor::intel;
    default:
      return Vendor::other;
  }
}

Vendor vendor_of_library(size_t library) {
  constexpr Vendor kVendors[] = {Vendor::nvidia, Vendor::nvidia, Vendor::amd, Vendor::intel};
  return kVendors[library];
}

bool shows_pictures(uint16_t pci_class) { return pci_class >> 8 == 0x03; }

/// Whether a device can compute, by class, vendor and number alone, for a hwloc without a GPU library. Chips of other
/// vendors with a display class belong to a server's management (ASPEED, Matrox, Hisilicon) or to a virtual machine.
bool can_compute(const PciFacts& pci) {
  const bool display = pci.class_id == kVga || pci.class_id == k3d;
  switch (pci.vendor_id) {
    case kNvidia:
      return display;
    case kAmd:
      // Numbers below 6600 are chips from before compute (Rage, ES1000) and graphics inside of processors; so are those
      // from 9000 on.
      return (display || pci.class_id == kOtherDisplay || pci.class_id == kAccelerator) && pci.device_id >= 0x6600 &&
             pci.device_id < 0x9000;
    case kIntel:
      // A device on bus 0 is part of the processor. Accelerators of Intel are FPGAs.
      return (display || pci.class_id == kOtherDisplay) && pci.bus != 0;
    default:
      return false;
  }
}

struct Found {
  Gpu gpu;
  std::optional<int> cuda;
};

void describe(Gpu& gpu, hwloc_obj_t device) {
  if (gpu.model.empty()) gpu.model = info(device, "GPUModel");
  for (const char* name : {"NVIDIAUUID", "AMDUUID", "LevelZeroUUID"})
    if (gpu.uuid.empty()) gpu.uuid = info(device, name);
}

/// GPU from the devices that GPU libraries made of one chip; nullopt: none did.
std::optional<Found> recognised(const std::vector<hwloc_obj_t>& devices) {
  std::optional<Found> found;
  size_t best = std::size(kLibraries);
  for (const hwloc_obj_t device : devices) {
    const std::optional<size_t> library = library_of(device);
    if (!library) continue;
    if (!found) found.emplace();
    if (*library < best) {
      best = *library;
      found->gpu.name = printable(device->name);
      found->gpu.vendor = vendor_of_library(best);
      if (best == kCuda) found->cuda = number_after(device->name, kLibraries[kCuda].prefix);
    }
    describe(found->gpu, device);
  }
  return found;
}

/// The key to look up where no name is recorded.
std::string pci_id(const PciFacts& pci) { return fmt::format("{:04x}:{:04x}", pci.vendor_id, pci.device_id); }

void read_pci_gpus(hwloc_topology_t topology, Machine& machine, std::vector<Found>& found) {
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    const PciFacts& pci = device->attr->pcidev;
    std::optional<Found> gpu = recognised(os_devices_below(device));
    if (!gpu && can_compute(pci)) gpu.emplace();
    if (!gpu) {
      if (shows_pictures(pci.class_id)) {
        machine.notes.push_back(fmt::format("{} ({}) is a display chip, not counted as a GPU",
                                            place_of(topology, device, machine).address.to_string(), pci_id(pci)));
      }
      continue;
    }
    gpu->gpu.vendor = vendor_of(pci.vendor_id);
    gpu->gpu.place = place_of(topology, device, machine);
    if (gpu->gpu.model.empty()) gpu->gpu.model = info(device, "PCIDevice");
    if (gpu->gpu.model.empty()) gpu->gpu.model = pci_id(pci);
    found.push_back(std::move(*gpu));
  }
}

/// Devices of a GPU library that hwloc could not attach to the PCI tree.
void read_detached_gpus(hwloc_topology_t topology, std::vector<Found>& found) {
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_osdev(topology, device)) != nullptr;) {
    if (pci_above(device) != nullptr) continue;
    if (std::optional<Found> gpu = recognised({device}); gpu && gpu->cuda) found.push_back(std::move(*gpu));
  }
}

/// CUDA's numbers where all are different; others count on from there.
void number(std::vector<Found>& found, Machine& machine) {
  std::vector<int> taken;
  for (const Found& gpu : found)
    if (gpu.cuda) taken.push_back(*gpu.cuda);
  std::sort(taken.begin(), taken.end());
  const bool unique = std::adjacent_find(taken.begin(), taken.end()) == taken.end();
  if (!unique) machine.notes.push_back("two GPUs have the same CUDA number: numbered by PCI address instead");
  int next = unique && !taken.empty() ? taken.back() + 1 : 0;
  for (Found& gpu : found) {
    gpu.gpu.index = unique && gpu.cuda ? *gpu.cuda : next++;
    if (gpu.gpu.name.empty()) gpu.gpu.name = fmt::format("gpu{}", gpu.gpu.index);
  }
}

}  // namespace

void read_gpus(hwloc_topology_t topology, Machine& machine) {
  std::vector<Found> found;
  read_pci_gpus(topology, machine, found);
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.gpu.place.address < b.gpu.place.address; });
  read_detached_gpus(topology, found);
  number(found, machine);
  for (Found& gpu : found) machine.gpus.push_back(std::move(gpu.gpu));
  std::stable_sort(machine.gpus.begin(), machine.gpus.end(),
                   [](const Gpu& a, const Gpu& b) { return a.index < b.index; });
}

}  // namespace gradrail::topology
