#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "fmt/format.h"
#include "transport/cuda_driver.h"
#include "transport/ucx/device/settings.h"

namespace gradrail::transport::ucx {
namespace {

std::string version_text() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return fmt::format("UCX {}.{}", major, minor);
}

/// Whether UCX_CUDA_COPY_DMABUF, which restricts UCX to one way, exists: since 1.16.
bool can_choose_transfer() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return major > 1 || minor >= 16;
}

/// Whether UCX uses dma-bufs only, by the setting of tame_library() or of the user.
bool uses_dma_bufs() {
  const char* const set = std::getenv("UCX_CUDA_COPY_DMABUF");
  return set != nullptr && std::string_view("yY1").find(set[0]) != std::string_view::npos;
}

}  // namespace

GpuHost GpuHost::look() {
  constexpr std::array kModules = {"/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/module/nvidia_peermem/version",
                                   "/sys/module/nv_peer_mem/version"};
  const bool module =
      std::any_of(kModules.begin(), kModules.end(), [](const char* path) { return access(path, F_OK) == 0; });
  return {.has_driver = has_cuda_driver(), .has_peer_memory_module = module};
}

GpuTransferSupport gpu_transfers(uint64_t memory_types, const GpuHost& gpu) {
  if ((memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0) {
    return GpuTransferSupport::none(
        fmt::format("moves host memory only: {} reports no CUDA memory ({})", version_text(),
                    gpu.has_driver ? "is it built with CUDA, and is cuda_copy among UCX_TLS?"
                                   : "this host has no CUDA driver, libcuda.so.1"));
  }
  if (!can_choose_transfer()) {
    return {.why_no_dma_buf = fmt::format(
                "takes GPU memory by peer-memory module only: {} does not allow the choice of dma-buf (1.16 does)",
                version_text()),
            .why_no_peer_memory = ""};
  }
  if (uses_dma_bufs()) {
    return {.why_no_dma_buf = "",
            .why_no_peer_memory =
                "takes GPU memory by dma-buf here: UCX sees no peer-memory module, "
                "or UCX_CUDA_COPY_DMABUF forbids it"};
  }
  return {.why_no_dma_buf = "takes GPU memory by peer-memory module here: UCX_CUDA_COPY_DMABUF=y makes it dma-buf",
          .why_no_peer_memory = ""};
}

}  // namespace gradrail::transport::ucx
