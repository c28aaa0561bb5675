#include "tools/doctor/facts/gpu_facts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/driver/device.h"
#include "gpu/driver/driver.h"

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

GpuFacts& gpu_at(GpuHost& host, const std::string& address) {
  const auto found =
      std::find_if(host.gpus.begin(), host.gpus.end(), [&](const GpuFacts& gpu) { return gpu.name == address; });
  // In a container CUDA can show a GPU that /sys does not.
  return found != host.gpus.end() ? *found : host.gpus.emplace_back(GpuFacts{.name = address});
}

void add_cuda(System& system, GpuHost& host) {
  const absl::StatusOr<std::string> text = system.observe("cuda", probe_cuda);
  host.cuda = text.status();
  if (!text.ok()) return;
  if (text->starts_with("absent ")) {
    host.cuda = absl::NotFoundError(printable(trimmed(text->substr(7))));
    return;
  }
  for (const std::string& line : lines_of(*text)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2 && words[0] == "version") {
      host.cuda_version = version_of(words[1]);
      host.cuda_version_source = "libcuda.so.1";
    }
    // The name comes last, since it has spaces.
    if (words.size() < 5 || words[0] != "gpu") continue;
    GpuFacts& gpu = gpu_at(host, printable(words[1]));
    gpu.memory_bytes = number_of(words[2]);
    gpu.dma_buf = words[3] == "dma_buf=true";
    gpu.gpu_direct = words[4] == "gpu_direct=true";
  }
}

/// The CUDA version that came with each branch of the driver (CUDA's release notes, table "CUDA Toolkit and
/// Corresponding Driver Versions").
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

void add_module(Tree& tree, GpuHost& host) {
  host.module_line = tree.line(kVersionFile);
  host.open_module = host.module_line.find("Open Kernel Module") != std::string::npos;
  for (const std::string& word : words_of(host.module_line)) {
    const bool is_version =
        word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version && host.module_version.empty()) host.module_version = word;
  }
  if (host.cuda_version || host.module_version.empty()) return;
  if (const std::optional<Version> version = version_of(host.module_version)) {
    host.cuda_version = cuda_of_branch(version->major);
    host.cuda_version_source = fmt::format("driver {} in {}", host.module_version, kVersionFile);
  }
}

}  // namespace

GpuHost read_gpus(System& system) {
  GpuHost host;
  for (PciDevice& device : read_pci_devices(system.tree())) {
    if (!device.is_nvidia_gpu()) continue;
    std::string name = device.address;
    host.gpus.push_back({.name = std::move(name), .pci = std::move(device)});
  }
  // In this order: add_module() derives the CUDA version from the driver only where CUDA gave none.
  add_cuda(system, host);
  add_module(system.tree(), host);
  return host;
}

}  // namespace gradrail::tools::doctor
