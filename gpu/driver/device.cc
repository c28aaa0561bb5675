#include "gpu/driver/device.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gpu/driver/native_error.h"

namespace gradrail::gpu {
namespace {

// sysfs writes PCI addresses in lower case, CUDA may write them in upper case.
std::string lower_case(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

/// Value of an attribute; 0 if the driver is older than the attribute.
int attribute(const Driver& driver, cuda::Device device, int which) {
  int value = 0;
  return driver.api().cuDeviceGetAttribute(&value, which, device) == cuda::kSuccess ? value : 0;
}

#if defined(__aarch64__)
constexpr bool kIsArm = true;
#else
constexpr bool kIsArm = false;
#endif

/// GPU and processor share page tables, as on Grace Hopper: writes of a NIC can take another way than PCIe.
bool is_coherent(const Driver& driver, cuda::Device device) {
  return kIsArm || attribute(driver, device, cuda::kPageableMemoryUsesHostPageTables) != 0;
}

/// NICs write the gradients, and the notice arrives in host memory. That order alone is trusted for a kernel which
/// CUDA states for all devices, or on Hopper and newer for the owner, behind PCIe. NCCL flushes in the same cases.
WritesFlush writes_flush(const Driver& driver, cuda::Device device, int compute_major) {
  const int ordering = attribute(driver, device, cuda::kGpuDirectRdmaWritesOrdering);
  if (ordering >= cuda::kWritesOrderingAllDevices) return WritesFlush::none;
  const bool is_ordered = ordering >= cuda::kWritesOrderingOwner && compute_major >= 9 && !is_coherent(driver, device);
  if (is_ordered) return WritesFlush::none;
  const int options = attribute(driver, device, cuda::kGpuDirectRdmaFlushWritesOptions);
  const bool by_host = (options & cuda::kFlushWritesOptionHost) != 0 && driver.api().cuFlushGPUDirectRDMAWrites;
  return by_host ? WritesFlush::by_host : WritesFlush::read_back;
}

bool has_graphs(const cuda::Functions& api) {
  return api.cuStreamBeginCapture_v2 != nullptr && api.cuStreamEndCapture != nullptr &&
         api.cuGraphInstantiateWithFlags != nullptr && api.cuGraphLaunch != nullptr && api.cuGraphDestroy != nullptr &&
         api.cuGraphExecDestroy != nullptr;
}

void describe(const Driver& driver, DeviceInfo& info) {
  const auto value = [&](int which) { return attribute(driver, info.handle, which); };
  info.compute_major = value(cuda::kComputeCapabilityMajor);
  info.compute_minor = value(cuda::kComputeCapabilityMinor);
  info.multiprocessors = value(cuda::kMultiprocessorCount);
  info.dma_buf = value(cuda::kDmaBufSupported) != 0 && driver.api().cuMemGetHandleForAddressRange != nullptr;
  info.gpu_direct_rdma = value(cuda::kGpuDirectRdmaSupported) != 0;
  info.pinned_addresses = value(cuda::kCanUseHostPointerForRegisteredMemory) != 0;
  info.stream_writes = value(cuda::kCanUse64BitStreamMemOps) != 0 && driver.api().cuStreamWriteValue64_v2 != nullptr;
  info.graphs = has_graphs(driver.api());
  info.writes_flush = writes_flush(driver, info.handle, info.compute_major);
}

absl::StatusOr<DeviceInfo> read_device(const Driver& driver, int ordinal) {
  const cuda::Functions& api = driver.api();
  DeviceInfo info{.ordinal = ordinal};
  // One byte stays 0: drivers may cut a long name without a terminator.
  std::array<char, 256> name{};
  std::array<char, 32> address{};
  cuda::Result result = api.cuDeviceGet(&info.handle, ordinal);
  if (result == cuda::kSuccess) result = api.cuDeviceGetName(name.data(), name.size() - 1, info.handle);
  if (result == cuda::kSuccess) result = api.cuDeviceGetPCIBusId(address.data(), address.size() - 1, info.handle);
  if (result == cuda::kSuccess) result = api.cuDeviceTotalMem_v2(&info.memory_bytes, info.handle);
  if (result != cuda::kSuccess) {
    const absl::Status status = to_status(driver, result, fmt::format("GPU {}", ordinal), "reading its properties");
    // Any error here means that the device does not answer: its code alone would call some of them INTERNAL.
    return device_loss(message_of(status));
  }
  info.name = name.data();
  info.pci_address = lower_case(address.data());
  describe(driver, info);
  return info;
}

}  // namespace

std::string DeviceInfo::label() const { return fmt::format("GPU {} ({}, {})", ordinal, name, pci_address); }

absl::StatusOr<std::vector<DeviceInfo>> list_devices(const Driver& driver) {
  std::vector<DeviceInfo> devices;
  for (int ordinal = 0; ordinal < driver.device_count(); ++ordinal) {
    GRADRAIL_ASSIGN_OR_RETURN(DeviceInfo device, read_device(driver, ordinal));
    devices.push_back(std::move(device));
  }
  return devices;
}

absl::StatusOr<std::vector<DeviceInfo>> list_devices() {
  GRADRAIL_ASSIGN_OR_RETURN(const Driver* const driver, Driver::get());
  return list_devices(*driver);
}

absl::StatusOr<DeviceInfo> find_device(const Driver& driver, int ordinal) {
  // Only the requested device is read: a neighbor that is lost must not stop this one.
  if (ordinal >= 0 && ordinal < driver.device_count()) return read_device(driver, ordinal);
  if (driver.device_count() == 0) {
    return absl::NotFoundError(fmt::format(
        "no GPU {}: the driver reports none (does CUDA_VISIBLE_DEVICES or the container hide them?)", ordinal));
  }
  GRADRAIL_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, list_devices(driver));
  std::vector<std::string> labels;
  for (const DeviceInfo& device : devices) labels.push_back(device.label());
  return absl::NotFoundError(fmt::format("no GPU {}: there is {}", ordinal, fmt::join(labels, ", ")));
}

std::optional<int> ordinal_at(absl::Span<const DeviceInfo> devices, std::string_view pci_address) {
  std::string wanted = lower_case(pci_address);
  // lspci leaves out domain 0000.
  if (std::count(wanted.begin(), wanted.end(), ':') == 1) wanted = "0000:" + wanted;
  // NVML and nvidia-smi write the domain with eight digits.
  if (wanted.size() == 16 && wanted.starts_with("0000")) wanted.erase(0, 4);
  const auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const DeviceInfo& device) { return device.pci_address == wanted; });
  // CUDA_VISIBLE_DEVICES may hide it.
  if (found == devices.end()) return std::nullopt;
  return found->ordinal;
}

PrimaryContext::PrimaryContext(const Driver& driver, DeviceInfo device, cuda::Context context)
    : driver_(driver), device_(std::move(device)), label_(device_.label()), context_(context) {}

PrimaryContext::~PrimaryContext() {
  // This call could block forever on a device that does not answer.
  if (!abandoned_) api().cuDevicePrimaryCtxRelease_v2(device_.handle);
}

absl::StatusOr<SharedContext> PrimaryContext::retain(const Driver& driver, const DeviceInfo& device) {
  cuda::Context context = nullptr;
  // The primary context, because cuBLAS, NCCL and UCX use it too: memory of one is then valid in all.
  const cuda::Result result = driver.api().cuDevicePrimaryCtxRetain(&context, device.handle);
  // This error in an operation is a lost GPU. Here another process has the GPU, and a new start would not change that.
  if (result == cuda::kDeviceUnavailable) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: opening it: {} (its compute mode permits one process or none: stop the process that nvidia-smi "
        "shows, choose another GPU, or permit several processes with nvidia-smi -c DEFAULT)",
        device.label(), driver.name_of(result)));
  }
  if (result != cuda::kSuccess) return to_status(driver, result, device.label(), "opening it");
  return SharedContext(new PrimaryContext(driver, device, context));
}

absl::Status PrimaryContext::status(cuda::Result result, std::string_view operation) const {
  return to_status(driver_, result, label_, operation);
}

}  // namespace gradrail::gpu
