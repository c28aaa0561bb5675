#include "transport/capabilities.h"

#include "fmt/format.h"

namespace gradrail::transport {

absl::Status check_memory(std::string_view transport, const MemorySpan& memory, const GpuTransferSupport& ways) {
  if (memory.data == nullptr && memory.bytes > 0) {
    return absl::InvalidArgumentError(fmt::format("{}: no memory to register", transport));
  }
  if (memory.kind == MemoryKind::host) return absl::OkStatus();
  if (memory.gpu == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("{}: GPU memory needs its source (gpu::source_for_nics), which defines the access", transport));
  }
  const std::string& why_not = ways.why_not(memory.gpu->way());
  if (why_not.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} {}: GPU memory cannot be registered by {}; stage it through pinned host memory (--gpu-direct "
                  "staged)",
                  transport, why_not, name_of(memory.gpu->way())));
}

}  // namespace gradrail::transport
