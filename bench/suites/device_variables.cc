#include "bench/suites/device_variables.h"

#include "base/status.h"
#include "bench/suites/device_name.h"
#include "ps/protocol/exchange_layout.h"

namespace gradrail::bench {

absl::StatusOr<std::unique_ptr<DeviceVariables>> DeviceVariables::create(const std::string& on, size_t elements,
                                                                         PushFormat push) {
  auto made = std::unique_ptr<DeviceVariables>(new DeviceVariables);
  made->elements_ = elements;
  made->push_ = push;
  GRADRAIL_ASSIGN_OR_RETURN(made->ordinal_, gpu_ordinal(on));
  GRADRAIL_ASSIGN_OR_RETURN(made->device_, gpu::open_device(made->ordinal_));
  const size_t bytes = gpu::own_allocation(ps::device_block_bytes(elements, push));
  GRADRAIL_ASSIGN_OR_RETURN(made->block_, made->device_->allocate(bytes));
  return made;
}

DeviceBlock DeviceVariables::memory() const {
  auto* const parameters = block_->as<float>();
  return {.ordinal = ordinal_,
          .parameters = parameters,
          .gradients = parameters + ps::device_gradients_at(elements_),
          .bytes = ps::device_block_bytes(elements_, push_)};
}

absl::Status DeviceVariables::write_gradients(absl::Span<const float> values) {
  auto* const gradients = block_->as<float>() + ps::device_gradients_at(elements_);
  device_->upload(gradients, values.data(), values.size() * sizeof(float));
  return device_->finish();
}

absl::Span<const GpuTransfer> all_gpu_transfers() {
  static constexpr GpuTransfer kWays[] = {GpuTransfer::ipc, GpuTransfer::dma_buf, GpuTransfer::peer_memory,
                                          GpuTransfer::staged};
  return kWays;
}

}  // namespace gradrail::bench
