// NVIDIA GPUs, their kernel module, the driver library, and how NICs reach GPU memory.
#include <algorithm>
#include <chrono>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/blas.h"
#include "gpu/compute/compute.h"
#include "gpu/direct/peer_memory.h"
#include "gpu/driver/device.h"
#include "gpu/driver/driver.h"
#include "gradrail/clock.h"
#include "tools/doctor/facts/read.h"

namespace gradrail::tools::doctor {
namespace {

constexpr std::string_view kNoCublas = "no-cublas ";
constexpr std::string_view kNotOpened = "not-opened ";
/// Time for opening the GPUs. Without a program that uses the driver, each takes up to seconds.
constexpr auto kOpenFor = std::chrono::seconds(10);

absl::StatusOr<std::string> probe_cuda() {
  const absl::StatusOr<const gpu::Driver*> driver = gpu::Driver::get();
  if (!driver.ok() && !gpu::Driver::is_installed()) return absl::NotFoundError(driver.status().message());
  if (!driver.ok()) return driver.status();
  std::string text = fmt::format("version {}\n", (*driver)->version_text());
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<gpu::DeviceInfo> devices, gpu::list_devices(**driver));
  const TimePoint end = Clock::now() + kOpenFor;
  for (const gpu::DeviceInfo& each : devices) {
    text += fmt::format("gpu {} {}\n", each.pci_address, each.dma_buf ? "dma_buf" : "-");
    if (Clock::now() > end) continue;
    // As a tower does: it also loads the kernels.
    if (const absl::Status opened = gpu::open_device(each.ordinal).status(); !opened.ok())
      text += fmt::format("{}{} {}\n", kNotOpened, each.pci_address, message_of(opened));
  }
  if (devices.empty()) return text;
  const absl::StatusOr<const gpu::BlasLibrary*> blas = gpu::blas_library();
  return text + (blas.ok() ? fmt::format("cublas {}\n", (*blas)->name)
                           : fmt::format("{}{}\n", kNoCublas, message_of(blas.status())));
}

Facts& gpu_at(Machine& machine, const std::string& address) {
  const auto found =
      std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const Facts& gpu) { return gpu["name"] == address; });
  if (found != machine.gpus.end()) return *found;
  // CUDA in a container can show a GPU that /sys does not.
  machine.gpus.emplace_back().set("name", address);
  return machine.gpus.back();
}

void read_cuda(const System& system, Machine& machine) {
  const absl::StatusOr<std::string> text = system.observe("cuda", probe_cuda);
  machine.host.set("cuda_error", std::string(message_of(text.status())));
  machine.host.set_if("cuda_absent", absl::IsNotFound(text.status()));
  for (const std::string& line : lines_of(text.value_or(""))) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2 && words[0] == "version") machine.host.set("cuda_version", printable(words[1]));
    if (words.size() == 2 && words[0] == "cublas") machine.host.set("cublas", printable(words[1]));
    // Not printable(), which cuts a long line: the searched folders are at its end.
    if (line.starts_with(kNoCublas)) machine.host.set("cublas_error", clean(line.substr(kNoCublas.size())));
    if (line.starts_with(kNotOpened) && words.size() > 2)
      gpu_at(machine, printable(words[1]))
          .set("open_error", clean(line.substr(kNotOpened.size() + words[1].size() + 1)));
    if (words.size() == 3 && words[0] == "gpu") {
      Facts& gpu = gpu_at(machine, printable(words[1]));
      gpu.set("by_cuda", "yes");
      gpu.set_if("dma_buf", words[2] == "dma_buf");
    }
  }
}

void read_kernel_module(const System& system, Facts& host) {
  const std::string line = system.line("/proc/driver/nvidia/version");
  host.set("module_line", line);
  for (const std::string& word : words_of(line)) {
    const bool is_version =
        word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version && !host.has("module_version")) host.set("module_version", word);
  }
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
  }
  read_cuda(system, machine);
  read_kernel_module(system, machine.host);
  machine.host.set_if("gpus", !machine.gpus.empty());
  const absl::StatusOr<std::string> peer_module = gpu::peer_memory_module(system.file("/sys"));
  for (Facts& gpu : machine.gpus) {
    gpu.set("peer_module", peer_module.value_or(""));
    gpu.set("peer_error", std::string(message_of(peer_module.status())));
  }
}

}  // namespace gradrail::tools::doctor
