#include "tools/doctor/proofs/proof_gpu.h"

#include <utility>
#include <vector>

#include "base/status.h"
#include "fmt/format.h"
#include "gpu/compute/compute.h"
#include "gpu/direct/dma_buf.h"
#include "gpu/driver/device.h"

namespace gradrail::tools::doctor {
namespace {

class GpuMemory final : public ProofMemory {
 public:
  static absl::StatusOr<std::unique_ptr<ProofMemory>> create(const std::string& pci_address, NicGpuTransfer way) {
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<gpu::DeviceInfo> devices, gpu::list_devices());
    const std::optional<int> ordinal = gpu::ordinal_at(devices, pci_address);
    if (!ordinal) return absl::NotFoundError("CUDA does not see this GPU (CUDA_VISIBLE_DEVICES?)");
    auto memory = std::unique_ptr<GpuMemory>(new GpuMemory);
    GRADRAIL_RETURN_IF_ERROR(memory->open(*ordinal, way));
    return absl::StatusOr<std::unique_ptr<ProofMemory>>(std::move(memory));
  }

  MemorySpan span() const override {
    return {.data = memory_->data(), .bytes = memory_->bytes(), .kind = MemoryKind::cuda, .gpu = source_.get()};
  }

  absl::Status fill(uint32_t seed) override {
    for (size_t i = 0; i < kProofBytes; ++i) {
      host_[i] = proof_pattern(seed, i);
      // The complement: memory that no put has written differs from the pattern in each byte.
      host_[kProofBytes + i] = ~proof_pattern(seed, i);
    }
    compute_->upload(memory_->data(), host_.data(), host_.size());
    return compute_->finish();
  }

  absl::Status compare(uint32_t seed) override {
    // The write of a NIC can be announced before it is visible to the GPU; see gpu/direct.
    GRADRAIL_RETURN_IF_ERROR(gpu::flush_nic_writes(*compute_));
    const gpu::CopyTicket ticket = compute_->download(host_.data(), memory_->data() + kProofBytes, kProofBytes);
    GRADRAIL_RETURN_IF_ERROR(compute_->wait(ticket));
    return compare_with_pattern({host_.data(), kProofBytes}, seed);
  }

 private:
  GpuMemory() : host_(2 * kProofBytes) {}

  absl::Status open(int ordinal, NicGpuTransfer way) {
    GRADRAIL_ASSIGN_OR_RETURN(compute_, gpu::open_device(ordinal));
    GRADRAIL_ASSIGN_OR_RETURN(memory_, compute_->allocate(gpu::own_allocation(2 * kProofBytes)));
    GRADRAIL_RETURN_IF_ERROR(gpu::prepare_for_peers(*compute_, memory_->data()));
    GRADRAIL_ASSIGN_OR_RETURN(source_, gpu::source_for_nics(*compute_, way));
    return absl::OkStatus();
  }

  // In the order in which they are made; they end in the other.
  std::vector<std::byte> host_;
  std::unique_ptr<gpu::Compute> compute_;
  std::unique_ptr<gpu::Memory> memory_;
  std::unique_ptr<GpuMemorySource> source_;
};

}  // namespace

MakeMemory gpu_memory(const std::string& pci_address, NicGpuTransfer way) {
  return [pci_address, way](const transport::Context& context) -> absl::StatusOr<std::unique_ptr<ProofMemory>> {
    // Asked before a GPU is opened: after UNIMPLEMENTED the caller skips the other GPUs.
    if (const std::string why = context.capabilities().gpu.why_not(way); !why.empty())
      return absl::UnimplementedError(fmt::format("{} {}", context.name(), why));
    return GpuMemory::create(pci_address, way);
  };
}

}  // namespace gradrail::tools::doctor
