#include "tools/doctor/checks/gpu_checks.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kNoGpu = "no NVIDIA GPU in /sys/bus/pci/devices";
constexpr const char* kVersionFile = "/proc/driver/nvidia/version";

/// dma-buf for RDMA came with Linux 5.12 (ib_umem_dmabuf), NVIDIA's export with its open modules of 515.
constexpr Version kDmaBufKernel{5, 12, 0};
constexpr int kDmaBufDriver = 515;

// Without a PCI function there is only CUDA's list: a container can hide /sys of the device.
Finding look_at_binding(const GpuFacts& gpu) {
  if (!gpu.pci) return {State::ok, fmt::format("GPU {} by libcuda.so.1", gpu.name)};
  if (gpu.pci->driver == "nvidia") return {State::ok, fmt::format("GPU {} in {}", gpu.name, gpu.pci->folder)};
  const std::string bound = gpu.pci->driver.empty() ? "no driver" : "driver " + gpu.pci->driver;
  return {
      State::broken, fmt::format("GPU {}: {} ({}/driver)", gpu.name, bound, gpu.pci->folder),
      "CUDA does not see this GPU",
      gpu.pci->driver == "nouveau"
          ? "echo blacklist nouveau | sudo tee /etc/modprobe.d/nouveau.conf && sudo update-initramfs -u, then reboot"
          : "sudo modprobe nvidia; then sudo dmesg | grep -i nvrm"};
}

struct ModuleState {
  std::string name;
  std::string state;  ///< of /sys/module/NAME/initstate
};

/// The driver's own since 470, the older one of Mellanox, and the name that it had in OFED (as
/// gpu/direct/peer_memory.cc).
std::vector<ModuleState> peer_memory_modules(Tree& tree) {
  std::vector<ModuleState> found;
  for (const char* name : {"nvidia_peermem", "nv_peer_mem", "nv_peermem"}) {
    const std::string folder = fmt::format("/sys/module/{}", name);
    if (tree.is_folder(folder)) found.push_back({name, tree.line(folder + "/initstate")});
  }
  return found;
}

bool peer_memory_works(Tree& tree) {
  const std::vector<ModuleState> modules = peer_memory_modules(tree);
  return std::any_of(modules.begin(), modules.end(), [](const ModuleState& each) { return each.state == "live"; });
}

/// The obstacles to dma-buf in kernel and driver, worst first.
std::vector<Finding> objections_to_dma_buf(Tree& tree, const GpuHost& host) {
  std::vector<Finding> findings;
  const std::string lost = "GPU memory cannot be registered with a NIC as a dma-buf";
  const std::string release = tree.line("/proc/sys/kernel/osrelease");
  // An unreadable version gives no objection: an obstacle must have evidence.
  if (const std::optional<Version> kernel = version_of(release); kernel && *kernel < kDmaBufKernel) {
    findings.push_back({State::broken, fmt::format("/proc/sys/kernel/osrelease: {}, older than 5.12", release), lost,
                        "a kernel from 5.12 on; or the peer-memory module instead: sudo modprobe nvidia_peermem"});
  }
  if (!host.module_line.empty() && !host.open_module) {
    findings.push_back({State::broken, fmt::format("{}: '{}' is the closed module", kVersionFile, host.module_line),
                        lost + ": only NVIDIA's open kernel modules export it",
                        "install them: sudo apt install nvidia-open (or the .run file with -M=open), then reboot; or "
                        "sudo modprobe nvidia_peermem"});
  }
  if (const std::optional<Version> driver = version_of(host.module_version);
      driver && host.open_module && driver->major < kDmaBufDriver) {
    findings.push_back({State::broken, fmt::format("{}: {}, older than 515", kVersionFile, host.module_version), lost,
                        "a driver from 515 on: sudo apt install nvidia-open"});
  }
  return findings;
}

Finding dma_buf_as_cuda_says(const GpuFacts& gpu) {
  if (*gpu.dma_buf) return {State::ok, fmt::format("GPU {}: CUDA says that its memory can be exported", gpu.name)};
  return {
      State::broken,
      fmt::format("GPU {}: CUDA says no (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, libcuda.so.1)", gpu.name),
      "its memory cannot be registered with a NIC as a dma-buf",
      "NVIDIA's open kernel modules (sudo apt install nvidia-open) and CUDA 11.7 on; or sudo modprobe nvidia_peermem"};
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
  size_t line = 0;     ///< of the file, from 1
};

/// BAR1 is the window that NICs can reach at once: the first prefetchable BAR behind BAR 0. BAR 0 of an A100 has 32
/// bits and takes one line. BAR 0 of an H100 has 64 bits and takes two lines.
std::optional<Bar1> find_bar1(Tree& tree, const GpuFacts& gpu) {
  const std::vector<std::string> rows = lines_of(tree.read(gpu.pci->folder + "/resource").text);
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

Finding look_at_bar1(Tree& tree, const GpuFacts& gpu) {
  const std::string file = gpu.pci->folder + "/resource";
  const char* const remedy =
      "in the firmware's setup: Above 4G Decoding and Re-Size BAR on; in a virtual machine: a larger 64-bit MMIO "
      "window; then nvidia-smi -q | grep -A 3 BAR1";
  const std::optional<Bar1> bar = find_bar1(tree, gpu);
  if (!bar) {
    return {State::unknown, fmt::format("GPU {}: no prefetchable memory behind BAR 0 in {}", gpu.name, file),
            "how much of its memory NICs can reach is not known", "nvidia-smi -q | grep -A 3 BAR1"};
  }
  if (bar->bytes == 0)
    return {State::broken, fmt::format("GPU {}: none assigned in {}, line {}", gpu.name, file, bar->line),
            "NICs cannot reach its memory at all", remedy};
  const std::string what = fmt::format("GPU {}: {} in {}, line {}", gpu.name, size_text(bar->bytes), file, bar->line);
  constexpr uint64_t kClassic = 256 << 20;  // what cards have without a resizable BAR; the driver takes a part of it
  if (bar->bytes <= kClassic)
    return {State::broken, what, "registering more GPU memory than that fails, and some of it is taken", remedy};
  if (gpu.memory_bytes && bar->bytes < *gpu.memory_bytes) {
    return {State::warning, fmt::format("{}, of {} memory", what, size_text(*gpu.memory_bytes)),
            "only that much can be registered with NICs at once", remedy};
  }
  return {State::ok, what};
}

}  // namespace

Check check_gpu_driver(const GpuHost& host) {
  const char* const name = "gpu-driver";
  std::vector<Finding> findings;
  if (host.gpus.empty() && host.module_line.empty()) {
    // No GPU and no driver, or a driver that loads and shows none: there is nothing to repair.
    // NOT_FOUND means that libcuda.so.1 is not installed.
    if (host.cuda.ok() || absl::IsNotFound(host.cuda)) return not_applicable(topic::kGpu, name, kNoGpu);
    findings.push_back({State::warning, fmt::format("libcuda.so.1 is here: {}", message_of(host.cuda)),
                        "if this host has a GPU, towers run on CPUs all the same", "nvidia-smi; dmesg | grep -i nvrm"});
    return conclude(topic::kGpu, name, std::move(findings));
  }
  for (const GpuFacts& gpu : host.gpus) findings.push_back(look_at_binding(gpu));
  if (!host.module_line.empty()) {
    findings.push_back({State::ok, fmt::format("{}: {}{}", kVersionFile, host.module_version,
                                               host.open_module ? ", open kernel modules" : ", closed kernel module")});
  } else if (host.cuda.ok()) {
    findings.push_back({State::unknown, fmt::format("CUDA answers, but there is no {}", kVersionFile),
                        "the driver is not NVIDIA's, or /proc belongs to another container",
                        "cat /proc/driver/nvidia/version"});
  } else {
    findings.push_back({State::missing, fmt::format("no {}", kVersionFile), "CUDA sees no GPU; towers run on CPUs",
                        "sudo apt install nvidia-open (or cuda-drivers), then sudo modprobe nvidia"});
  }
  return conclude(topic::kGpu, name, std::move(findings));
}

Check check_peer_memory(System& system, const GpuHost& host) {
  const char* const name = "gpu-peer-memory";
  if (host.gpus.empty()) return not_applicable(topic::kGpu, name, kNoGpu);
  std::vector<Finding> findings;
  for (const ModuleState& module : peer_memory_modules(system.tree())) {
    const std::string file = fmt::format("/sys/module/{}/initstate", module.name);
    // One module that is live is enough: the others are older names of it.
    if (module.state == "live") return conclude(topic::kGpu, name, {{State::ok, file + ": live"}});
    findings.push_back({State::broken, fmt::format("{}: {}", file, module.state), "the module does not serve",
                        fmt::format("sudo rmmod {0}; sudo modprobe {0}; then dmesg", module.name)});
  }
  if (!findings.empty()) return conclude(topic::kGpu, name, std::move(findings));
  // With dma-buf it is not needed.
  const bool needed = !objections_to_dma_buf(system.tree(), host).empty();
  return conclude(topic::kGpu, name,
                  {{needed ? State::missing : State::warning, "no /sys/module/nvidia_peermem, nor an older name of it",
                    needed ? "no NIC reads GPU memory: gradients are staged through host memory"
                           : "libraries that know no dma-buf (UCX before 1.14, libfabric before 1.20) cannot register "
                             "GPU memory",
                    "sudo modprobe nvidia_peermem (after ib_core); for good: echo nvidia_peermem | sudo tee "
                    "/etc/modules-load.d/nvidia_peermem.conf"}});
}

Check check_dma_buf(System& system, const GpuHost& host) {
  const char* const name = "gpu-dma-buf";
  if (host.gpus.empty()) return not_applicable(topic::kGpu, name, kNoGpu);
  std::vector<Finding> findings = objections_to_dma_buf(system.tree(), host);
  for (const GpuFacts& gpu : host.gpus)
    if (gpu.dma_buf) findings.push_back(dma_buf_as_cuda_says(gpu));
  if (findings.empty()) {
    if (host.module_line.empty()) {
      findings.push_back({State::unknown, fmt::format("no {}", kVersionFile), "the driver decides it",
                          "sudo modprobe nvidia, then again"});
    } else {
      findings.push_back(
          {State::ok, fmt::format("{}: {}, open; /proc/sys/kernel/osrelease: {}", kVersionFile, host.module_version,
                                  system.tree().line("/proc/sys/kernel/osrelease"))});
    }
  }
  // If the peer-memory module works, missing dma-bufs have no effect: errors then become warnings.
  if (peer_memory_works(system.tree()))
    for (Finding& finding : findings)
      if (!holds_up(finding.state)) finding.state = State::warning;
  return conclude(topic::kGpu, name, std::move(findings));
}

Check check_bar1(System& system, const GpuHost& host) {
  std::vector<Finding> findings;
  for (const GpuFacts& gpu : host.gpus)
    if (gpu.pci) findings.push_back(look_at_bar1(system.tree(), gpu));
  if (findings.empty()) return not_applicable(topic::kGpu, "gpu-bar1", kNoGpu);
  return conclude(topic::kGpu, "gpu-bar1", std::move(findings));
}

std::vector<Check> check_gpus(System& system, const GpuHost& host) {
  return {check_gpu_driver(host),   check_peer_memory(system, host),   check_dma_buf(system, host),
          check_bar1(system, host), check_cuda_versions(system, host), check_nccl(system, host)};
}

}  // namespace gradrail::tools::doctor
