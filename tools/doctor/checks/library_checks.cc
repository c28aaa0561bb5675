#include "tools/doctor/checks/library_checks.h"

#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/proofs/library_probe.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

Finding no_library(const char* name, const absl::Status& why, const char* package) {
  // A transport is built against the library, so installing the package alone does not add it.
  return {State::missing, fmt::format("{}: {}", name, message_of(why)),
          fmt::format("the transport over {} cannot be used", name),
          fmt::format("sudo apt install {} and build gradrail again", package)};
}

/// Modules beside UCX hold its transports.
std::vector<Finding> look_at_ucx(System& system, const LibraryAnswer& ucx, bool gpus, bool rdma) {
  const std::string modules = folder_of(ucx.path) + "/ucx";
  const auto has = [&](const char* name) { return system.tree().exists(fmt::format("{}/{}", modules, name)); };
  std::vector<Finding> findings = {{State::ok, fmt::format("{} {}", ucx.path, ucx.version)}};
  // UCX loads these modules by name at its start; one that cannot be loaded is left out without an error.
  if (has("libuct_ib.so.0")) {
    findings.push_back({State::ok, modules + "/libuct_ib.so.0: verbs"});
  } else {
    // Without an RDMA device the lack has no effect today.
    findings.push_back({rdma ? State::broken : State::warning, modules + "/libuct_ib.so.0 is not there",
                        "UCX uses no RDMA device", "a UCX built with verbs: ./configure --with-verbs --with-rdmacm"});
  }
  if (has("libuct_cuda.so.0")) {
    findings.push_back({State::ok, modules + "/libuct_cuda.so.0: CUDA"});
  } else if (gpus) {
    findings.push_back(
        {State::warning, modules + "/libuct_cuda.so.0 is not there: built without CUDA",
         "UCX takes no GPU memory: over ucx gradients are staged through host memory",
         "a UCX built with CUDA: ./configure --with-cuda=/usr/local/cuda --with-verbs, or NVIDIA's HPC-X"});
  } else {
    findings.push_back({State::ok, modules + ": built without CUDA, and there is no GPU"});
  }
  return findings;
}

Check check_ucx(System& system, bool gpus, bool rdma) {
  const absl::StatusOr<LibraryAnswer> ucx = probe_ucx(system);
  if (!ucx.ok()) return conclude(topic::kLibraries, "ucx", {no_library("UCX", ucx.status(), "libucx-dev")});
  return conclude(topic::kLibraries, "ucx", look_at_ucx(system, *ucx, gpus, rdma));
}

Check check_libfabric(System& system, bool gpus) {
  const absl::StatusOr<LibraryAnswer> library = probe_libfabric(system);
  if (!library.ok())
    return conclude(topic::kLibraries, "libfabric", {no_library("libfabric", library.status(), "libfabric-dev")});
  const std::string what = fmt::format("{} {}", library->path, library->version);
  if (!gpus) return conclude(topic::kLibraries, "libfabric", {{State::ok, what}});
  const char* const lost = "over ofi gradients are staged through host memory";
  if (!library->cuda) {
    return conclude(topic::kLibraries, "libfabric",
                    {{State::warning, what + ": built without CUDA (it names no cudaMemcpy)",
                      fmt::format("libfabric takes no GPU memory: {}", lost),
                      "a libfabric built with CUDA: ./configure --with-cuda=/usr/local/cuda --enable-cuda-dlopen "
                      "--enable-verbs"}});
  }
  if (library->lacks_cudart) {
    return conclude(topic::kLibraries, "libfabric",
                    {{State::warning, what + ": with CUDA, which it loads by the name libcudart.so; there is none",
                      fmt::format("libfabric takes no GPU memory: {}", lost),
                      "sudo apt install cuda-cudart-dev-13-0, or a link libcudart.so to libcudart.so.13 in a folder of "
                      "the library path"}});
  }
  // FI_MR_DMABUF came with 1.20; before it, libfabric exports on its own or needs the peer-memory module.
  const std::optional<Version> version = version_of(library->version);
  if (version && *version < Version{1, 20, 0}) {
    return conclude(topic::kLibraries, "libfabric",
                    {{State::warning, what + ": with CUDA, older than 1.20",
                      "it takes no dma-buf: GPU memory needs the peer-memory module",
                      "libfabric 1.20 or newer; or sudo modprobe nvidia_peermem"}});
  }
  return conclude(topic::kLibraries, "libfabric", {{State::ok, what + ": with CUDA"}});
}

}  // namespace

std::vector<Check> check_libraries(System& system, const GpuHost& host, const std::vector<RdmaDevice>& devices) {
  const bool gpus = !host.gpus.empty();
  return {check_ucx(system, gpus, !devices.empty()), check_libfabric(system, gpus)};
}

}  // namespace gradrail::tools::doctor
