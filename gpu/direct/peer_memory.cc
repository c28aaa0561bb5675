#include "gpu/direct/peer_memory.h"

#include <fstream>

#include "fmt/format.h"

namespace gradrail::gpu {
namespace {

/// The driver's own since 470, the older one of Mellanox, and the name that it had in OFED.
constexpr const char* kModules[] = {"nvidia_peermem", "nv_peer_mem", "nv_peermem"};

/// A module that is still starting, or on its way out, has a folder too.
bool is_live(const std::filesystem::path& module) {
  std::string state;
  // The text is "coming", "live" or "going"; a read error leaves it empty, which is not live.
  std::ifstream(module / "initstate") >> state;
  return state == "live";
}

}  // namespace

absl::StatusOr<std::string> peer_memory_module(const std::filesystem::path& sysfs) {
  for (const char* name : kModules) {
    std::error_code error;
    const std::filesystem::path module = sysfs / "module" / name;
    if (!std::filesystem::is_directory(module, error)) continue;
    if (is_live(module)) return name;
    return absl::FailedPreconditionError(fmt::format("kernel module {} is not live: see dmesg", name));
  }
  return absl::FailedPreconditionError(
      "no peer-memory module: modprobe nvidia_peermem (after the RDMA drivers), or use dma-buf");
}

}  // namespace gradrail::gpu
