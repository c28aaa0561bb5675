#include "gpu/direct/ipc.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/device_compute.h"
#include "gpu/compute/device_memory.h"
#include "gpu/driver/native_error.h"

namespace gradrail::gpu {
namespace {

// An exported run, in the byte order of the host, which both ends share:
//   magic[8] | pci address[16] | process[8] | offset[8] | bytes[8] | CUDA's handle of the allocation[64]
struct Exported {
  std::array<char, 8> magic;
  std::array<char, 16> pci_address;
  uint64_t process;
  uint64_t offset;
  uint64_t bytes;
  cuda::IpcMemoryHandle handle;
};
static_assert(sizeof(Exported) == 112 && std::is_trivially_copyable_v<Exported>);

/// Alignment of allocations. Kernels may rely on it.
constexpr uint64_t kAlignBytes = 256;

// The last character is the version of this layout: both processes must have compatible builds.
constexpr std::array<char, 8> kMagic = {'g', 'r', 'a', 'd', 'g', 'p', 'u', '1'};

class MappedMemory final : public Memory {
 public:
  MappedMemory(SharedContext context, cuda::DevicePointer base, std::byte* data, size_t bytes)
      : Memory(data, bytes), context_(std::move(context)), base_(base) {}
  ~MappedMemory() override {
    if (context_->is_abandoned()) return;
    context_->make_current();
    context_->api().cuIpcCloseMemHandle(base_);
  }

 private:
  const SharedContext context_;
  const cuda::DevicePointer base_;
};

absl::StatusOr<DeviceCompute*> ipc_device(Compute& compute) {
  if (auto* device = dynamic_cast<DeviceCompute*>(&compute)) return device;
  return absl::FailedPreconditionError("host memory cannot be exported as GPU memory: pass it as shared memory");
}

absl::StatusOr<Exported> read_exported(std::string_view words) {
  Exported exported;
  if (words.size() != sizeof(exported)) {
    return absl::InvalidArgumentError(
        fmt::format("exported GPU memory is {} bytes, these are {}", sizeof(exported), words.size()));
  }
  // A copy: bytes of a message have no alignment.
  std::memcpy(&exported, words.data(), sizeof(exported));
  if (exported.magic != kMagic || exported.pci_address.back() != '\0') {
    return absl::InvalidArgumentError("this is not exported GPU memory of this version");
  }
  return exported;
}

/// A kernel's first bad access would end this process' context, and its word is all that the other process gives.
absl::Status check_alignment(const Exported& exported) {
  if (exported.offset % kAlignBytes == 0 && exported.bytes % sizeof(float) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("exported GPU memory: {} bytes from byte {} of an allocation: runs are of whole floats and begin at "
                  "multiples of {}",
                  exported.bytes, exported.offset, kAlignBytes));
}

/// Checks that the run is inside the memory that the driver mapped: the data of the other process are not sufficient if
/// the driver can answer.
absl::Status check_run(const PrimaryContext& context, cuda::DevicePointer base, const Exported& exported) {
  cuda::DevicePointer begin = 0;
  size_t bytes = 0;
  if (context.api().cuMemGetAddressRange_v2(&begin, &bytes, base) != cuda::kSuccess) return absl::OkStatus();
  // The check avoids a sum of `offset` and `bytes`, which could overflow: the other process sends both.
  const size_t before = base - begin;
  if (exported.offset <= bytes - before && exported.bytes <= bytes - before - exported.offset) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("exported GPU memory: bytes {} to {} of an allocation of {}",
                                                exported.offset, exported.offset + exported.bytes, bytes));
}

absl::Status open_refusal(const PrimaryContext& context, cuda::Result result, const Exported& exported) {
  absl::Status status = context.status(result, fmt::format("mapping memory of process {}", exported.process));
  if (absl::IsUnavailable(status)) return status;
  // CUDA cannot map memory of the same process. A pid of another namespace may be equal by chance, so this check
  // follows the driver's refusal.
  if (exported.process == static_cast<uint64_t>(getpid())) {
    return absl::FailedPreconditionError(fmt::format("{}: it is this process", message_of(status)));
  }
  if (result == cuda::kPeerAccessUnsupported || result == cuda::kTooManyPeers) {
    return absl::FailedPreconditionError(
        fmt::format("{}: this GPU has no peer access to the GPU at {} (see nvidia-smi topo -p2p r)", message_of(status),
                    exported.pci_address.data()));
  }
  return absl::FailedPreconditionError(
      fmt::format("{}: the exporting process must run, in the PID and IPC namespaces of this process, on the GPU at {}",
                  message_of(status), exported.pci_address.data()));
}

}  // namespace

absl::StatusOr<std::string> export_memory(Compute& compute, const void* data, size_t bytes) {
  GRADRAIL_ASSIGN_OR_RETURN(DeviceCompute* const device, ipc_device(compute));
  const PrimaryContext& context = *device->context();
  context.make_current();
  cuda::DevicePointer base = 0;
  size_t allocated = 0;
  const cuda::DevicePointer address = address_of(data);
  const cuda::Result found = context.api().cuMemGetAddressRange_v2(&base, &allocated, address);
  if (is_lasting(found)) return context.status(found, fmt::format("exporting {} bytes", bytes));
  if (found != cuda::kSuccess || bytes > allocated - (address - base)) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes to be exported are not its memory", compute.name(), bytes));
  }
  // CUDA exports whole allocations: the offset leads to the run.
  Exported exported{
      .magic = kMagic, .process = static_cast<uint64_t>(getpid()), .offset = address - base, .bytes = bytes};
  // The address is for error messages of the receiver only; the handle itself leads to the device.
  context.device().pci_address.copy(exported.pci_address.data(), exported.pci_address.size() - 1);
  const cuda::Result result = context.api().cuIpcGetMemHandle(&exported.handle, base);
  if (result != cuda::kSuccess) {
    absl::Status status = context.status(result, fmt::format("exporting {} bytes", bytes));
    return absl::IsUnavailable(status) ? status : absl::FailedPreconditionError(status.message());
  }
  return std::string(reinterpret_cast<const char*>(&exported), sizeof(exported));
}

absl::StatusOr<std::unique_ptr<Memory>> map_memory(Compute& compute, std::string_view words) {
  GRADRAIL_ASSIGN_OR_RETURN(DeviceCompute* const device, ipc_device(compute));
  GRADRAIL_ASSIGN_OR_RETURN(const Exported exported, read_exported(words));
  GRADRAIL_RETURN_IF_ERROR(check_alignment(exported));
  const SharedContext& context = device->context();
  context->make_current();
  cuda::DevicePointer base = 0;
  const cuda::Result result =
      context->api().cuIpcOpenMemHandle_v2(&base, exported.handle, cuda::kIpcLazyEnablePeerAccess);
  if (result != cuda::kSuccess) return open_refusal(*context, result, exported);
  // Owned before the check, so that a refusal unmaps it.
  auto mapped = std::make_unique<MappedMemory>(context, base, reinterpret_cast<std::byte*>(base + exported.offset),
                                               exported.bytes);
  GRADRAIL_RETURN_IF_ERROR(check_run(*context, base, exported));
  return mapped;
}

}  // namespace gradrail::gpu
