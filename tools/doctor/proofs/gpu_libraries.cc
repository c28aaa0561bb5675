// NVIDIA's libraries: those of the driver and those that programs bring must fit.
#include <array>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/reduce/nccl.h"
#include "tools/doctor/checks/gpu_checks.h"
#include "tools/doctor/facts/library_files.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kVersionFile = "/proc/driver/nvidia/version";

struct Runtime {
  std::string path;
  Version version;
};

/// CUDA's runtime libraries, newest first.
std::vector<Runtime> runtimes(Tree& tree) {
  std::vector<Runtime> found;
  // Newest first. CUDA 11 kept the file name of its first release; CUDA 10 had a name for each release.
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so.10.2"}) {
    const std::string path = find_library(tree, name);
    if (path.empty()) continue;
    if (const std::optional<Version> version = version_of(library_version(tree, path)))
      found.push_back({path, *version});
  }
  return found;
}

/// The library and the kernel module come in pairs of one version; after an upgrade without a reboot they differ.
std::vector<Finding> compare_driver_halves(Tree& tree, const GpuHost& host) {
  const std::string path = find_library(tree, "libcuda.so.1");
  if (path.empty() || host.module_version.empty()) return {};
  const std::string version = library_version(tree, path);
  // A name without a version, as in some containers, says nothing about the driver.
  if (version.find('.') == std::string::npos) return {};
  if (version == host.module_version) return {{State::ok, fmt::format("{} and kernel module are {}", path, version)}};
  return {{State::broken, fmt::format("{} is {}, {}: {}", path, version, kVersionFile, host.module_version),
           "CUDA does not start: driver and library mismatch",
           "reboot, or sudo rmmod nvidia_uvm nvidia && sudo modprobe nvidia, so that the new kernel module is loaded"}};
}

Finding compare(Tree& tree, const Runtime& newest, const GpuHost& host) {
  const Version& driver = *host.cuda_version;
  const std::string what =
      fmt::format("{} is CUDA {}.{}, the driver speaks {}.{} ({})", newest.path, newest.version.major,
                  newest.version.minor, driver.major, driver.minor, host.cuda_version_source);
  // Within one major version any runtime runs on any driver.
  // NVIDIA calls this minor version compatibility; it holds from CUDA 11 on.
  if (newest.version.major <= driver.major) return {State::ok, what};
  const std::string remedy = fmt::format(
      "a driver for CUDA {0}: sudo apt install nvidia-open; or CUDA's forward compatibility: sudo apt install "
      "cuda-compat-{0}-{1}; or the libraries of CUDA {2}",
      newest.version.major, newest.version.minor, driver.major);
  if (tree.exists("/usr/local/cuda/compat/libcuda.so.1")) {
    return {State::warning, what + ", /usr/local/cuda/compat/libcuda.so.1 is there",
            "works for programs that find the compatibility library first",
            "export LD_LIBRARY_PATH=/usr/local/cuda/compat"};
  }
  return {State::broken, what, "cuBLAS and NCCL of that version do not start: CUDA driver version is insufficient",
          remedy};
}

absl::StatusOr<std::string> probe_nccl() {
  GRADRAIL_ASSIGN_OR_RETURN(const gpu::NcclLibrary* const library, gpu::nccl_library());
  return library->version;
}

}  // namespace

Check check_cuda_versions(System& system, const GpuHost& host) {
  const char* const name = "cuda";
  const std::vector<Runtime> installed = runtimes(system.tree());
  if (host.gpus.empty()) {
    return not_applicable(topic::kGpu, name,
                          installed.empty() ? "no GPU" : installed[0].path + " is there, but no GPU");
  }
  std::vector<Finding> findings = compare_driver_halves(system.tree(), host);
  if (!host.cuda_version) {
    findings.push_back({State::unknown, fmt::format("the driver's version: {}", message_of(host.cuda)),
                        "whether libraries fit is not known", "nvidia-smi"});
  } else if (installed.empty()) {
    findings.push_back(
        {State::ok, fmt::format("no libcudart in the library folders; the driver speaks CUDA {}.{} ({})",
                                host.cuda_version->major, host.cuda_version->minor, host.cuda_version_source)});
  } else {
    // Older ones beside it are no trouble, and one that fits is enough.
    Finding best = compare(system.tree(), installed.front(), host);
    for (const Runtime& each : installed)
      if (Finding other = compare(system.tree(), each, host); other.state < best.state) best = std::move(other);
    findings.push_back(std::move(best));
  }
  return conclude(topic::kGpu, name, std::move(findings));
}

Check check_nccl(System& system, const GpuHost& host) {
  const char* const name = "nccl";
  const char* const remedy = "sudo apt install libnccl2 (NVIDIA's package repository), 2.18 or newer";
  const std::string path = find_library(system.tree(), "libnccl.so.2");
  // Asked also without a GPU, so that a recording holds the answer.
  const absl::StatusOr<std::string> version = system.observe("nccl", probe_nccl);
  if (host.gpus.empty()) {
    return not_applicable(topic::kGpu, name, path.empty() ? "no GPU" : path + " is there, but no GPU");
  }
  if (version.ok()) {
    return conclude(
        topic::kGpu, name,
        {{State::ok, fmt::format("{} ({})", printable(trimmed(*version)), path.empty() ? "libnccl.so.2" : path)}});
  }
  // A recording from before this check has no answer, but its file names the version.
  if (!path.empty() && absl::IsNotFound(version.status()))
    return conclude(topic::kGpu, name,
                    {{State::ok, fmt::format("{} ({})", library_version(system.tree(), path), path)}});
  return conclude(topic::kGpu, name,
                  {{path.empty() ? State::warning : State::broken,
                    path.empty() ? "no libnccl.so.2 in the library folders"
                                 : fmt::format("{}: {}", path, message_of(version.status())),
                    "towers on several GPUs of one worker are averaged on the host", remedy}});
}

}  // namespace gradrail::tools::doctor
