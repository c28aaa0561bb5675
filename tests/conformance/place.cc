#include "conformance/place.h"

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "conformance/pattern.h"
#include "fmt/format.h"
#include "gpu/direct/dma_buf.h"
#include "gpu/driver/device.h"

namespace gradrail::conformance {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kInPage = 1280;

template <typename T>
T check_ok(absl::StatusOr<T> result, std::string_view what) {
  if (!result.ok()) throw Broken(fmt::format("{}: {}", what, result.status().ToString()));
  return *std::move(result);
}

/// Stands in for gpu::source_for_nics() with the kernel module loaded, which this host may lack. The simulated device's
/// memory is memory of the process, and is accessible by its address.
class PeerMemory final : public GpuMemorySource {
 public:
  PeerMemory() : GpuMemorySource(0, NicGpuTransfer::peer_memory) {}
  absl::StatusOr<DmaBuf> export_dma_buf(const void*, size_t) const override {
    return absl::InternalError("a dma-buf was asked for, though the way is peer memory");
  }
};

std::unique_ptr<GpuMemorySource> source_of(gpu::Compute& compute) {
  if (tested_transfer() == NicGpuTransfer::peer_memory) return std::make_unique<PeerMemory>();
  return check_ok(gpu::source_for_nics(compute, NicGpuTransfer::dma_buf), "source");
}

}  // namespace

NicGpuTransfer tested_transfer() {
  const char* const way = std::getenv("GRADRAIL_TEST_GPU_DIRECT");
  const bool dma_buf = way != nullptr && std::string_view(way) == name_of(NicGpuTransfer::dma_buf);
  return dma_buf ? NicGpuTransfer::dma_buf : NicGpuTransfer::peer_memory;
}

Place::Place(Side& side, Where where, size_t bytes, transport::Access access) {
  if (where == Where::host) {
    host_ = check_ok(SharedMemory::create("place", bytes), "memory");
    span_ = host_.span();
  } else {
    compute_ = check_ok(gpu::open_device(0), "device");
    source_ = source_of(*compute_);
    // Whole pages, and not from their start: a dma-buf has an offset then.
    device_ = check_ok(compute_->allocate((bytes + kInPage + kPage - 1) / kPage * kPage), "device memory");
    span_ = {.data = device_->data() + kInPage, .bytes = bytes, .kind = MemoryKind::cuda, .gpu = source_.get()};
  }
  region_ = check_ok(side.context().register_memory(span_, access), "register_memory");
}

Place::~Place() = default;

void Place::fill(size_t offset, size_t bytes, uint64_t seed) {
  std::vector<std::byte> pattern(bytes);
  fill_pattern(absl::MakeSpan(pattern), seed);
  if (bytes == 0) return;
  if (compute_ == nullptr) {
    std::memcpy(span_.data + offset, pattern.data(), bytes);
    return;
  }
  compute_->upload(span_.data + offset, pattern.data(), bytes);
  if (absl::Status done = compute_->finish(); !done.ok()) throw Broken("upload: " + done.ToString());
}

std::vector<std::byte> Place::read(size_t offset, size_t bytes) const {
  std::vector<std::byte> copy(bytes);
  if (bytes == 0) return copy;
  if (compute_ == nullptr) {
    std::memcpy(copy.data(), span_.data + offset, bytes);
    return copy;
  }
  const gpu::CopyTicket ticket = compute_->download(copy.data(), span_.data + offset, bytes);
  if (absl::Status done = compute_->wait(ticket); !done.ok()) throw Broken("download: " + done.ToString());
  return copy;
}

}  // namespace gradrail::conformance
