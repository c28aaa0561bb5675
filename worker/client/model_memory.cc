#include "worker/client/model_memory.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/status.h"

namespace gradrail::worker {

ModelMemory::ModelMemory(ps::Schema schema) : schema_(std::move(schema)) {
  tensor_first_.push_back(0);
  for (const ps::Tensor& tensor : schema_) tensor_first_.push_back(tensor_first_.back() + tensor.elements());
}

absl::Status ModelMemory::allocate(const MemoryBinder& place, const DeviceMemory& device) {
  const size_t bytes = elements() * sizeof(float);
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory parameters, SharedMemory::create("gradrail-parameters", bytes));
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory gradients, SharedMemory::create("gradrail-gradients", bytes));
  // Before the first write: pages of memory that was touched keep their NUMA node.
  if (place) {
    place(parameters.span());
    place(gradients.span());
  }
  parameters_ = std::move(parameters);
  gradients_ = std::move(gradients);
  if (device.device == nullptr) return absl::OkStatus();
  GRADRAIL_ASSIGN_OR_RETURN(gpu_, GpuVariables::create(device, elements(), parameters_.span(), gradients_.span()));
  return absl::OkStatus();
}

ps::ElementRange ModelMemory::range(size_t tensor_index) const {
  GRADRAIL_CHECK(tensor_index < schema_.size());
  return {.first = tensor_first_[tensor_index], .count = tensor_first_[tensor_index + 1] - tensor_first_[tensor_index]};
}

absl::Span<float> ModelMemory::view(const SharedMemory& memory, size_t tensor_index) const {
  const ps::ElementRange tensor = range(tensor_index);
  return {reinterpret_cast<float*>(memory.data()) + tensor.first, tensor.count};
}

uint32_t ModelMemory::crc_of(const SharedMemory& memory, ps::ElementRange range) {
  GRADRAIL_CHECK((range.first + range.count) * sizeof(float) <= memory.bytes());
  return crc32c(memory.data() + range.first * sizeof(float), range.count * sizeof(float));
}

absl::Status ModelMemory::fetch_parameters() { return gpu_ == nullptr ? absl::OkStatus() : gpu_->fetch_parameters(); }

absl::Status ModelMemory::copy_parameters_to_gradients() {
  // An offer of initial values leaves from the memory of gradients, as each push does.
  std::memcpy(gradients_.data(), parameters_.data(), parameters_.bytes());
  return gpu_ == nullptr ? absl::OkStatus() : gpu_->upload_initial();
}

}  // namespace gradrail::worker
