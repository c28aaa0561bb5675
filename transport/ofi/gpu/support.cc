#include "transport/ofi/gpu/support.h"

#include <rdma/fabric.h>

#include <algorithm>
#include <string_view>

#include "absl/types/span.h"
#include "fmt/format.h"
#include "transport/cuda_driver.h"
#include "transport/ofi/gpu/dma_buf.h"

namespace gradrail::transport::ofi {
namespace {

std::string version_text() { return fmt::format("{}.{}", FI_MAJOR(fi_version()), FI_MINOR(fi_version())); }

/// Providers may offer FI_HMEM for other makers' devices. That CUDA is in shows in libfabric's own list of settings
/// alone.
bool is_built_with_cuda() {
  fi_param* all = nullptr;
  int count = 0;
  if (fi_getparams(&all, &count) != 0 || all == nullptr) return false;
  const absl::Span<const fi_param> params(all, static_cast<size_t>(count));
  const bool found = std::any_of(params.begin(), params.end(), [](const fi_param& param) {
    return std::string_view(param.name).find("HMEM_CUDA") != std::string_view::npos;
  });
  fi_freeparams(all);
  return found;
}

std::string why_no_dma_buf() {
  if (fi_version() < kDmaBufVersion) {
    return fmt::format("takes GPU memory by peer-memory module only: libfabric {} does not support dma-buf (1.20 does)",
                       version_text());
  }
  if (builds_dma_bufs()) return "";
  return fmt::format(
      "takes GPU memory by peer-memory module only: it was built against libfabric {}.{} (1.20 has "
      "dma-bufs: rebuild it)",
      FI_MAJOR_VERSION, FI_MINOR_VERSION);
}

}  // namespace

std::string why_no_gpu_memory() {
  if (!is_built_with_cuda()) {
    return fmt::format("moves host memory only: libfabric {} was built without CUDA", version_text());
  }
  return has_cuda_driver() ? "" : "moves host memory only: this host has no CUDA driver (libcuda.so.1)";
}

GpuTransferSupport gpu_transfers() { return {.why_no_dma_buf = why_no_dma_buf(), .why_no_peer_memory = ""}; }

uint32_t gpu_api_version() { return why_no_dma_buf().empty() ? kDmaBufVersion : FI_VERSION(1, 17); }

}  // namespace gradrail::transport::ofi
