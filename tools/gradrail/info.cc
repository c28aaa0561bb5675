#include "tools/gradrail/info.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/version.h"
#include "fmt/format.h"
#include "gpu/compute/blas.h"
#include "gpu/direct/peer_memory.h"
#include "gpu/driver/device.h"
#include "gpu/driver/module.h"
#include "gpu/kernels/image.h"
#include "gpu/reduce/nccl.h"
#include "launch/placement/gpu_probe.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/training.h"
#include "transport/registry.h"
#include "worker/data/dataset.h"

namespace gradrail::tools {
namespace {

/// Opens the transport and listens: whether it is usable is tried, not guessed.
std::string try_transport(const transport::Transport& transport) {
  // Errors are results here: a missing transport is a line of the report.
  const absl::StatusOr<std::unique_ptr<transport::Context>> context = transport.open({});
  if (!context.ok()) return fmt::format("NOT usable: {}", message_of(context.status()));
  // 127.0.0.1: the test must not open a port to other hosts.
  const absl::StatusOr<std::string> address = (*context)->listen(transport.same_host_only ? "" : "127.0.0.1:0");
  if (!address.ok()) return fmt::format("NOT usable: {}", message_of(address.status()));
  const transport::Capabilities can = (*context)->capabilities();
  return fmt::format("usable ({}{}{} messages to {} B)", can.one_sided ? "one-sided, " : "",
                     can.direct_map ? "maps peers' memory, " : "", can.ordered_puts ? "ordered," : "unordered,",
                     can.max_message_bytes);
}

/// Whether an RDMA device would carry the bytes: ucx and ofi run over sockets too. `auto` takes them only
/// then.
std::string try_rdma(const transport::Transport& transport) {
  const absl::StatusOr<std::unique_ptr<transport::Context>> context = transport.open({.rdma_only = true});
  return context.ok() ? "by an RDMA device" : fmt::format("not by an RDMA device: {}", message_of(context.status()));
}

/// Describes the way of GPU memory over it, or the reason why there is none.
std::string try_gpu_memory(const transport::Transport& transport) {
  absl::StatusOr<std::unique_ptr<transport::Context>> context = transport.open({.rdma_only = true});
  // The libraries without an RDMA device still state why they take no GPU memory.
  if (!context.ok()) context = transport.open({});
  if (!context.ok()) return "";
  const transport::GpuTransferSupport ways = (*context)->capabilities().gpu;
  const bool by_dma_buf = ways.takes(NicGpuTransfer::dma_buf), by_module = ways.takes(NicGpuTransfer::peer_memory);
  if (by_dma_buf && by_module) return "takes GPU memory by dma-buf and by peer-memory module";
  if (by_dma_buf) return "takes GPU memory by dma-buf";
  return ways.why_no_dma_buf;  // the text names the alternative
}

std::string describe(const gpu::DeviceInfo& device) {
  // GiB as in the documents of NVIDIA.
  constexpr double kGib = 1 << 30;
  // Either dma-buf or the kernel module is enough (docs/gpu.md).
  const bool module = gpu::peer_memory_module().ok();
  const char* direct = !device.gpu_direct_rdma    ? "not reachable by NICs"
                       : device.dma_buf && module ? "reachable by NICs (dma-buf, peer-memory module)"
                       : device.dma_buf           ? "reachable by NICs (dma-buf)"
                       : module                   ? "reachable by NICs (peer-memory module, no dma-buf)"
                                                  : "not reachable by NICs (no dma-buf, no peer-memory module)";
  const char* flush = !device.gpu_direct_rdma                            ? ""
                      : device.writes_flush == gpu::WritesFlush::none    ? ", their writes in order"
                      : device.writes_flush == gpu::WritesFlush::by_host ? ", their writes flushed by the host"
                                                                         : ", their writes seen after a read-back";
  return fmt::format("{}, {}, sm_{}{}, {:.1f} GiB, {}{}, {}, {}", device.name, device.pci_address, device.compute_major,
                     device.compute_minor, device.memory_bytes / kGib, direct, flush,
                     device.stream_writes ? "stream writes" : "no stream writes",
                     device.graphs ? "graphs" : "no graphs");
}

void print_devices() {
  const absl::StatusOr<std::vector<gpu::DeviceInfo>> devices = gpu::list_devices();
  if (!devices.ok()) return fmt::print("  {:9} NOT usable: {}\n", "devices", message_of(devices.status()));
  if (devices->empty()) return fmt::print("  {:9} none that the driver sees (CUDA_VISIBLE_DEVICES?)\n", "devices");
  for (const gpu::DeviceInfo& device : *devices) {
    fmt::print("  {:9} {}\n", fmt::format("GPU {}", device.ordinal), describe(device));
  }
}

/// Whatever is only found when the program runs is looked for here as a run would.
void print_gpus(const launch::ProbedGpus& probed) {
  const auto words = [](const auto& found, const auto& name) {
    return found.ok() ? name(*found) : fmt::format("NOT usable: {}", message_of(found.status()));
  };
  fmt::print("GPUs:\n");
  const absl::StatusOr<const gpu::Driver*> driver =
      probed.driver_failed ? absl::FailedPreconditionError(probed.why_none) : gpu::Driver::get();
  fmt::print("  {:9} {}\n", "driver",
             words(driver, [](const gpu::Driver* found) { return "CUDA " + found->version_text(); }));
  if (driver.ok()) print_devices();
  const int version = gpu::kernel_image_version();
  fmt::print("  {:9} {}{}\n", "kernels", gpu::kernel_image_description(),
             version == 0 ? "" : fmt::format(", for drivers of CUDA {}.0 and newer", version / 1000));
  if (driver.ok()) {
    if (const absl::Status fits = gpu::check_kernels(**driver); !fits.ok())
      fmt::print("  {:9} NOT usable: {}\n", "", message_of(fits));
  }
  // The version of the driver selects the library.
  if (!probed.driver_failed)
    fmt::print("  {:9} {}\n", "cuBLAS",
               words(gpu::blas_library(), [](const gpu::BlasLibrary* library) { return library->name; }));
  fmt::print("  {:9} {}\n", "NCCL",
             words(gpu::nccl_library(), [](const gpu::NcclLibrary* library) { return library->version; }));
  fmt::print("  {:9} {}\n", "peer mem",
             words(gpu::peer_memory_module(), [](const std::string& module) { return "kernel module " + module; }));
}

}  // namespace

std::string version_line() {
  return fmt::format("gradrail {} (commit {}, wire protocol {})", GRADRAIL_VERSION, build_commit(),
                     ps::kProtocolVersion);
}

int run_info() {
  // Before this process has threads, and in another one with a time limit: a driver may hang or crash.
  const launch::ProbedGpus probed = launch::probe_gpus();
  fmt::print("{}\n", version_line());
  fmt::print("kernels: {}\n", ps::apply_isa());
  fmt::print("transports, in order of preference:\n");
  for (const transport::Transport& transport : transport::transports()) {
    fmt::print("  {:9} {}; {}\n", transport.name, transport.purpose, try_transport(transport));
    // shm and tcp need no device. `auto` never takes a transport that is used by name only.
    if (!transport.plugin || transport.by_name_only) continue;
    fmt::print("  {:9} {}\n", "", try_rdma(transport));
    if (const std::string gpu = try_gpu_memory(transport); !gpu.empty()) fmt::print("  {:9} {}\n", "", gpu);
  }
  print_gpus(probed);
  const absl::StatusOr<std::string> data = worker::default_mnist_folder();
  fmt::print("data: {}\n", data.ok() ? *data : std::string(message_of(data.status())));
  fmt::print("host: {}\n", transport::host_id());
  return 0;
}

}  // namespace gradrail::tools
