#include "tools/doctor/proofs/gpu_memory.h"

#include <utility>
#include <vector>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/compute.h"
#include "gpu/direct/dma_buf.h"
#include "gpu/driver/device.h"

namespace gradrail::tools::doctor {
namespace {

class GpuMemory final : public bench::PutMemory {
 public:
  static absl::StatusOr<std::unique_ptr<bench::PutMemory>> create(const std::string& pci_address, NicGpuTransfer way,
                                                                  size_t bytes) {
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<gpu::DeviceInfo> devices, gpu::list_devices());
    const std::optional<int> ordinal = gpu::ordinal_at(devices, pci_address);
    if (!ordinal) return absl::NotFoundError("CUDA does not see this GPU (CUDA_VISIBLE_DEVICES?)");
    auto memory = std::unique_ptr<GpuMemory>(new GpuMemory(bytes));
    GRADRAIL_RETURN_IF_ERROR(memory->open(*ordinal, way));
    return absl::StatusOr<std::unique_ptr<bench::PutMemory>>(std::move(memory));
  }

  MemorySpan span() const override {
    return {.data = memory_->data(), .bytes = memory_->bytes(), .kind = MemoryKind::cuda, .gpu = source_.get()};
  }
  std::byte* host() override { return host_.data(); }

  absl::Status upload() override {
    compute_->upload(memory_->data(), host_.data(), host_.size());
    return compute_->finish();
  }

  absl::Status download() override {
    // The write of a NIC can be announced before it is visible to the GPU (gpu/direct).
    GRADRAIL_RETURN_IF_ERROR(gpu::flush_nic_writes(*compute_));
    return compute_->wait(compute_->download(host_.data(), memory_->data(), host_.size()));
  }

 private:
  explicit GpuMemory(size_t bytes) : host_(bytes) {}

  absl::Status open(int ordinal, NicGpuTransfer way) {
    GRADRAIL_ASSIGN_OR_RETURN(compute_, gpu::open_device(ordinal));
    GRADRAIL_ASSIGN_OR_RETURN(memory_, compute_->allocate(gpu::own_allocation(host_.size())));
    GRADRAIL_RETURN_IF_ERROR(gpu::prepare_for_peers(*compute_, memory_->data()));
    GRADRAIL_ASSIGN_OR_RETURN(source_, gpu::source_for_nics(*compute_, way));
    return absl::OkStatus();
  }

  // The order is that of creation; destruction has the reverse order.
  std::vector<std::byte> host_;
  std::unique_ptr<gpu::Compute> compute_;
  std::unique_ptr<gpu::Memory> memory_;
  std::unique_ptr<GpuMemorySource> source_;
};

}  // namespace

bench::MakePutMemory gpu_memory(const std::string& pci_address, NicGpuTransfer way) {
  return [pci_address, way](const transport::Context& context,
                            size_t bytes) -> absl::StatusOr<std::unique_ptr<bench::PutMemory>> {
    // The check precedes the opening of a GPU: after UNIMPLEMENTED the caller skips the other GPUs.
    if (const std::string why = context.capabilities().gpu.why_not(way); !why.empty())
      return absl::UnimplementedError(fmt::format("{} {}", context.name(), why));
    return GpuMemory::create(pci_address, way, bytes);
  };
}

}  // namespace gradrail::tools::doctor
