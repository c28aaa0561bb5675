#include "ps/shard/registered_parameters.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random_bits.h"
#include "base/status.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/path_check.h"
#include "ps/store/store_device.h"

namespace gradrail::ps {

absl::Status RegisteredParameters::open(const Partition& partition) {
  close();
  for (const auto& context : environment_.contexts) {
    // local: no key of these regions exists, so that no peer can write parameters.
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<transport::MemoryRegion> region,
                              transport::register_on(environment_.registered, *context, partition.store().parameters(),
                                                     transport::Access::local));
    host_.push_back(std::move(region));
  }
  GRADRAIL_CHECK(host_.size() == environment_.contexts.size());
  gpu_.resize(environment_.contexts.size());
  open_gpu(partition);
  return absl::OkStatus();
}

void RegisteredParameters::close() {
  host_.clear();
  gpu_.clear();
}

void RegisteredParameters::open_gpu(const Partition& partition) {
  StoreDevice* const memory = partition.device();
  // The seed is not 0: 0 in Welcome means the complement of the worker's seed.
  gpu_check_seed_ = random_bits() | 1;
  if (memory == nullptr || partition.range().count == 0) return;
  std::vector<std::byte> pattern(kCheckBytes);
  fill_check(absl::MakeSpan(pattern), gpu_check_seed_);
  // No path into the GPU could be verified without the pattern: slots are then in host memory.
  if (!memory->write_check(pattern).ok()) return;
  for (size_t i = 0; i < gpu_.size(); ++i) {
    // The loop takes the first way that works: dma-buf is first because it needs no kernel module.
    for (const NicGpuTransfer way : {NicGpuTransfer::dma_buf, NicGpuTransfer::peer_memory}) {
      if (gpu_[i].region == nullptr && environment_.contexts[i]->capabilities().gpu.takes(way)) {
        register_gpu(i, way, *memory);
      }
    }
  }
}

void RegisteredParameters::register_gpu(size_t context_index, NicGpuTransfer way, StoreDevice& memory) {
  transport::Context& context = *environment_.contexts[context_index];
  const absl::StatusOr<MemorySpan> parameters = memory.parameters_for(way);
  absl::StatusOr<std::unique_ptr<transport::MemoryRegion>> region =
      parameters.ok() ? transport::register_on(environment_.registered, context, *parameters, transport::Access::local)
                      : parameters.status();
  if (region.ok()) {
    gpu_[context_index] = {way, *std::move(region)};
  } else {
    log_info("{}: {} does not reach its GPU's memory by {}: {}", environment_.options.name, context.name(),
             name_of(way), message_of(region.status()));
  }
}

}  // namespace gradrail::ps
