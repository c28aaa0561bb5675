// Parameters and slots in GPU memory, where a network device reaches them: gradients land where the kernel reads them.
#include <algorithm>
#include <vector>

#include "base/crc32c.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/path_check.h"
#include "ps/shard.h"
#include "spdlog/spdlog.h"

namespace gradrail::ps {

/// For each context the first way that works, if any: nothing is lost without, as slots are in host memory then.
void Shard::register_gpu() {
  gpu_regions_.resize(contexts_.size());
  gpu_answer_seed_ = random_bits() | 1;
  std::vector<std::byte> pattern(kCheckBytes);
  fill_check(absl::MakeSpan(pattern), gpu_answer_seed_);
  if (range().count == 0 || !store_->write_gpu_check(pattern).ok()) return;  // a store in host memory
  for (size_t i = 0; i < contexts_.size(); ++i) {
    for (const GpuDirect way : {GpuDirect::dma_buf, GpuDirect::peer_memory}) {
      if (gpu_regions_[i].parameters == nullptr && contexts_[i]->capabilities().gpu.takes(way)) register_gpu(i, way);
    }
  }
}

void Shard::register_gpu(size_t context_index, GpuDirect way) {
  transport::Context& context = *contexts_[context_index];
  const absl::StatusOr<MemorySpan> memory = store_->gpu_parameters(way);
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> region =
      memory.ok() ? transport::register_on(registered_, context, *memory, transport::Access::local) : memory.status();
  if (region.ok()) {
    gpu_regions_[context_index] = {way, *std::move(region)};
  } else {
    spdlog::info("{}: {} does not reach its GPU's memory by {}: {}", options_.name, context.name(), name_of(way),
                 message_of(region.status()));
  }
}

absl::Status Shard::make_gpu_slots(ShardPeer& peer) {
  const GpuRegion& reached = gpu_regions_[peer.context_index];
  const bool is_pushed = !peer.on_device() && peer.gradients_mapped == nullptr;
  if (reached.parameters == nullptr || !is_pushed || peer.host_slots) return absl::OkStatus();
  absl::StatusOr<DeviceSlots> slots =
      store_->gpu_slots(reached.way, std::max<size_t>(range().count * sizeof(float), kCheckBytes));
  if (!slots.ok()) return slots.status();
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> region = transport::register_on(
      registered_, *contexts_[peer.context_index], slots->memory, transport::Access::remote_write);
  if (!region.ok()) return region.status();
  peer.payload = {*std::move(slots), *std::move(region)};
  return absl::OkStatus();
}

/// "" when the memory that was mapped is the worker's: its pattern is there, and ours is left for it.
std::string Shard::check_mapped(const DeviceVariables& mapped, uint64_t seed) {
  std::vector<std::byte> pattern(kCheckBytes);
  absl::Status done = store_->read_gpu(mapped.check, absl::MakeSpan(pattern));
  if (!done.ok()) return std::string(message_of(done));
  if (std::string wrong = compare_check(pattern, seed); !wrong.empty()) return wrong;
  fill_check(absl::MakeSpan(pattern), check_answer_seed(seed));
  done = store_->write_gpu(mapped.check + kCheckBytes, pattern);
  return done.ok() ? "" : std::string(message_of(done));
}

/// "" when the worker's pattern is where its gradients will be.
std::string Shard::compare_arrived_check(ShardPeer& peer) {
  if (!uses_gpu(peer)) {
    const absl::Span<std::byte> arrived(peer.slots.memory.data(), kCheckBytes);
    std::string wrong = compare_check(arrived, peer.check_seed);
    std::fill(arrived.begin(), arrived.end(), std::byte{});
    return wrong;
  }
  std::vector<std::byte> arrived(kCheckBytes);
  absl::Status read = store_->flush_gpu();
  if (read.ok()) read = store_->read_gpu(peer.payload.slots.memory.data, absl::MakeSpan(arrived));
  if (!read.ok()) return std::string(message_of(read));
  const std::string wrong = compare_check(arrived, peer.check_seed);
  return wrong.empty() ? "" : fmt::format("in the shard's GPU memory: {}", wrong);
}

/// A pattern in the memory that parameters leave from. There it is the same for all, since there is one space for it
/// and puts to several may be under way.
transport::LocalSlice Shard::check_answer(const ShardPeer& peer) const {
  if (!uses_gpu(peer)) return {peer.returns.region.get(), 0, kCheckBytes};
  return {gpu_regions_[peer.context_index].parameters.get(), store_->gpu_check_at(), kCheckBytes};
}

absl::StatusOr<uint32_t> Shard::payload_crc(const ShardPeer& peer, uint32_t bucket) {
  const size_t count = bucket_range(bucket).count;
  if (uses_gpu(peer)) return store_->crc32c_gpu(gradient(peer, bucket), count);
  return crc32c(gradient(peer, bucket), count * sizeof(float));
}

}  // namespace gradrail::ps
