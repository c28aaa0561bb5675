#include "transport/ucx/device/settings.h"

#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

namespace gradrail::transport::ucx {
namespace {

bool set_by_user(const std::string& name) { return std::getenv(("UCX_" + name).c_str()) != nullptr; }

/// The devices that reach the network of bind_host: its interface, and the RDMA ports beside it. "" for any.
std::string devices_of(const std::string& bind_host, const std::vector<RdmaPort>& ports) {
  const std::string interface = interface_of(bind_host);
  if (interface.empty()) return "";
  std::string devices = interface;
  for (const RdmaPort& port : ports) {
    if (port.interface == interface) devices += "," + port.name;
  }
  return devices;
}

}  // namespace

std::string Setting::short_name() const {
  constexpr std::string_view kPrefix = "IB_";
  if (name.substr(0, kPrefix.size()) == kPrefix) return name.substr(kPrefix.size());
  return name;
}

std::vector<Setting> settings(const OpenOptions& options, const std::vector<RdmaPort>& ports, const GpuHost& gpu) {
  std::vector<Setting> wanted;
  // UCX up to 1.18 chooses a RoCE v2 GID of IPv4. Soft-RoCE silently drops the UD packets of that GID, so that no
  // wire-up succeeds. GID 0 is the link-local one. UCX chooses the GID of real adapters itself.
  const bool all_soft =
      !ports.empty() && std::all_of(ports.begin(), ports.end(), [](auto& port) { return port.soft_roce; });
  if (all_soft) wanted.push_back({"IB_GID_INDEX", "0"});
  // UCX adds ud for wire-up. As a separate path it copies, and up to 1.13 an endpoint that ends before its wire-up is
  // over makes UCX abort.
  // cuda_copy carries no data to peers: it detects GPU memory.
  if (options.rdma_only) wanted.push_back({"TLS", gpu.has_driver ? "rc,dc,cuda_copy" : "rc,dc"});
  // Bulk data of GPUs may otherwise travel in pieces that UCX copies through the host.
  if (gpu.has_driver) wanted.push_back({"RNDV_SCHEME", "get_zcopy"});
  if (const std::string devices = devices_of(options.bind_host, ports); !devices.empty()) {
    wanted.push_back({"NET_DEVICES", devices});
  }
  std::erase_if(wanted, [](const Setting& setting) { return set_by_user(setting.name); });
  return wanted;
}

void tame_library(const GpuHost& gpu) {
  static const bool done = [&] {
    // Only the environment can set these variables in 1.13. They are read when a worker is made, after this.
    // UCX hides shared memory from endpoints that report errors unless this is set. The side channel detects lost
    // peers.
    setenv("UCX_POSIX_ERROR_HANDLING", "y", 0);
    // The default of 8 KiB makes bulk over UCX's tcp twenty times as slow.
    setenv("UCX_TCP_TX_SEG_SIZE", "64k", 0);
    setenv("UCX_TCP_RX_SEG_SIZE", "64k", 0);
    // A lost path is noticed after about two seconds (0.27 s, the next power of two of 4 us, seven times). So a run can
    // move to another path within five seconds. Soft-RoCE retries for ever with the default count of 7.
    for (const char* lane : {"RC_VERBS", "RC_MLX5", "DC_MLX5"}) {
      setenv((std::string("UCX_") + lane + "_TIMEOUT").c_str(), "250ms", 0);
      setenv((std::string("UCX_") + lane + "_RETRY_COUNT").c_str(), "6", 0);
    }
    // UCX with both available would take a dma-buf where it can and the module where it cannot, and not report which.
    if (gpu.has_driver) setenv("UCX_CUDA_COPY_DMABUF", gpu.has_peer_memory_module ? "n" : "y", 0);
    // UCX would log every loss of a peer a second time, and memory that cannot be locked at length. Our errors report
    // both.
    if (!set_by_user("LOG_LEVEL")) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    if (!set_by_user("HANDLE_ERRORS") && !set_by_user("ERROR_SIGNALS")) {
      for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
    }
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace gradrail::transport::ucx
