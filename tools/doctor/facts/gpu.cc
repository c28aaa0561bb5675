// NVIDIA GPUs, their kernel module, the driver library, and the modules by which RDMA drivers reach GPU memory.
#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/driver/device.h"
#include "gpu/driver/driver.h"
#include "tools/doctor/facts/read.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kVersionFile = "/proc/driver/nvidia/version";

absl::StatusOr<std::string> probe_cuda() {
  const absl::StatusOr<const gpu::Driver*> driver = gpu::Driver::get();
  if (!driver.ok() && !gpu::Driver::is_installed()) return fmt::format("absent {}\n", message_of(driver.status()));
  if (!driver.ok()) return driver.status();
  std::string text = fmt::format("version {}\n", (*driver)->version_text());
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<gpu::DeviceInfo> devices, gpu::list_devices(**driver));
  for (const gpu::DeviceInfo& each : devices) {
    text += fmt::format("gpu {} {} dma_buf={} gpu_direct={} {}\n", each.pci_address, each.memory_bytes, each.dma_buf,
                        each.gpu_direct_rdma, each.name);
  }
  return text;
}

/// Flags of a PCI resource (linux/ioport.h).
constexpr uint64_t kMemory = 0x200;
constexpr uint64_t kPrefetchable = 0x2000;
constexpr uint64_t kWide = 0x10'0000;          // IORESOURCE_MEM_64: the BAR takes two lines
constexpr uint64_t kUnassigned = 0x2000'0000;  // IORESOURCE_UNSET: the range has a size and no address
constexpr size_t kBars = 6;                    // the lines behind them are the ROM and the windows of bridges

struct PciResource {
  uint64_t first = 0;
  uint64_t last = 0;
  uint64_t flags = 0;
};

std::optional<PciResource> resource_from(const std::string& row) {
  const std::vector<std::string> words = words_of(row);
  if (words.size() != 3) return std::nullopt;
  const std::optional<uint64_t> first = number_of(words[0], 16);
  const std::optional<uint64_t> last = number_of(words[1], 16);
  const std::optional<uint64_t> flags = number_of(words[2], 16);
  if (!first || !last || !flags || *last < *first) return std::nullopt;
  return PciResource{*first, *last, *flags};
}

struct Bar1 {
  uint64_t bytes = 0;  ///< 0: no address is assigned
  size_t line = 0;     ///< line of the file, from 1
};

/// Finds BAR1, the window that NICs can reach directly: the first prefetchable BAR behind BAR 0. BAR 0 of an A100 has
/// 32 bits and takes one line. BAR 0 of an H100 has 64 bits and takes two lines.
std::optional<Bar1> find_bar1(const System& system, const std::string& folder) {
  const std::vector<std::string> rows = lines_of(system.text(folder + "/resource"));
  bool is_bar0 = true;
  for (size_t i = 0; i < std::min(rows.size(), kBars);) {
    const std::optional<PciResource> bar = resource_from(rows[i]);
    if (!bar) return std::nullopt;
    const size_t line = i + 1;
    i += (bar->flags & kWide) != 0 ? 2 : 1;
    if (std::exchange(is_bar0, false)) continue;
    // The kernel clears the line of a BAR for which it has found no space, or marks it.
    if (bar->last == 0 || (bar->flags & kUnassigned) != 0) return Bar1{.bytes = 0, .line = line};
    if ((bar->flags & kMemory) != 0 && (bar->flags & kPrefetchable) != 0)
      return Bar1{.bytes = bar->last - bar->first + 1, .line = line};
  }
  return std::nullopt;
}

void add_bar1(const System& system, const std::string& folder, Facts& gpu) {
  const std::optional<Bar1> bar = find_bar1(system, folder);
  if (!bar) return;
  gpu.set("bar1", bar->bytes);
  gpu.set("bar1_text", size_text(bar->bytes));
  gpu.set("bar1_line", bar->line);
}

Facts& gpu_at(Machine& machine, const std::string& address) {
  const auto found =
      std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const Facts& gpu) { return gpu["name"] == address; });
  if (found != machine.gpus.end()) return *found;
  // CUDA in a container can show a GPU that /sys does not.
  machine.gpus.emplace_back().set("name", address);
  return machine.gpus.back();
}

void set_cuda_version(const std::optional<Version>& version, const std::string& source, Facts& host) {
  if (!version) return;
  host.set("cuda_version", fmt::format("{}.{}", version->major, version->minor));
  host.set("cuda_major", static_cast<uint64_t>(version->major));
  host.set("cuda_version_source", source);
}

void read_cuda(const System& system, Machine& machine) {
  const absl::StatusOr<std::string> text = system.observe("cuda", probe_cuda);
  constexpr std::string_view kAbsent = "absent ";
  const bool absent = absl::IsNotFound(text.status()) || (text.ok() && text->starts_with(kAbsent));
  machine.host.set("cuda_error", text.ok() && absent ? printable(trimmed(text->substr(kAbsent.size())))
                                                     : std::string(message_of(text.status())));
  machine.host.set_if("cuda_absent", absent);
  if (!text.ok() || absent) return;
  for (const std::string& line : lines_of(*text)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2 && words[0] == "version")
      set_cuda_version(version_of(words[1]), "libcuda.so.1", machine.host);
    // The name is last, since it has spaces.
    if (words.size() < 5 || words[0] != "gpu") continue;
    Facts& gpu = gpu_at(machine, printable(words[1]));
    if (const std::optional<uint64_t> bytes = number_of(words[2])) {
      gpu.set("memory", *bytes);
      gpu.set("memory_text", size_text(*bytes));
    }
    gpu.set("dma_buf", words[3] == "dma_buf=true" ? "yes" : "no");
    machine.host.set("cuda_says_dma_buf", "yes");
  }
}

/// CUDA version of each branch of the driver (CUDA's release notes, table "CUDA Toolkit and Corresponding Driver
/// Versions").
std::optional<Version> cuda_of_branch(int branch) {
  constexpr std::array<std::pair<int, Version>, 21> kBranches = {
      {{580, {13, 0, 0}}, {575, {12, 9, 0}}, {570, {12, 8, 0}}, {565, {12, 7, 0}}, {560, {12, 6, 0}}, {555, {12, 5, 0}},
       {550, {12, 4, 0}}, {545, {12, 3, 0}}, {535, {12, 2, 0}}, {530, {12, 1, 0}}, {525, {12, 0, 0}}, {520, {11, 8, 0}},
       {515, {11, 7, 0}}, {510, {11, 6, 0}}, {495, {11, 5, 0}}, {470, {11, 4, 0}}, {465, {11, 3, 0}}, {460, {11, 2, 0}},
       {455, {11, 1, 0}}, {450, {11, 0, 0}}, {440, {10, 2, 0}}}};
  for (const auto& [first, version] : kBranches)
    if (branch >= first) return version;
  return std::nullopt;
}

void read_kernel_module(const System& system, Facts& host) {
  const std::string line = system.line(kVersionFile);
  std::string text;
  for (const std::string& word : words_of(line)) {
    const bool is_version =
        word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version && text.empty()) text = word;
  }
  host.set("module_line", line);
  host.set("module_version", text);
  host.set_if("open_module", line.find("Open Kernel Module") != std::string::npos);
  const std::optional<Version> version = version_of(text);
  if (!version) return;
  host.set_if("module_before_515", version->major < 515);
  if (!host.has("cuda_version"))
    set_cuda_version(cuda_of_branch(version->major), fmt::format("driver {} in {}", text, kVersionFile), host);
}

/// The driver's own since 470, the older one of Mellanox, and the name that it had in OFED (as
/// gpu/direct/peer_memory.cc).
void read_peer_modules(const System& system, Machine& machine) {
  bool any_live = false;
  for (const char* name : {"nvidia_peermem", "nv_peer_mem", "nv_peermem"}) {
    const std::string folder = fmt::format("/sys/module/{}", name);
    if (!system.is_folder(folder)) continue;
    Facts& module = machine.peer_modules.emplace_back();
    module.set("name", name);
    module.set("file", folder + "/initstate");
    module.set("state", system.line(folder + "/initstate"));
    any_live = any_live || module["state"] == "live";
  }
  for (Facts& module : machine.peer_modules) module.set_if("another_is_live", any_live && module["state"] != "live");
  machine.host.set_if("peer_modules", !machine.peer_modules.empty());
}

}  // namespace

void read_gpus(const System& system, const std::vector<PciDevice>& functions, Machine& machine) {
  for (const PciDevice& device : functions) {
    if (!device.is_nvidia_gpu()) continue;
    Facts& gpu = machine.gpus.emplace_back();
    gpu.set("name", device.address);
    gpu.set("folder", device.folder);
    gpu.set("driver", device.driver);
    gpu.set("bound", device.driver.empty() ? "no driver" : "driver " + device.driver);
    add_bar1(system, device.folder, gpu);
  }
  machine.host.set_if("pci_gpus", !machine.gpus.empty());
  // The order matters: the kernel module gives the CUDA version only where CUDA gave none.
  read_cuda(system, machine);
  read_kernel_module(system, machine.host);
  machine.host.set_if("gpus", !machine.gpus.empty());
  if (!machine.gpus.empty()) read_peer_modules(system, machine);
}

}  // namespace gradrail::tools::doctor
