#include "worker/client/model_memory.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ps/optimizer/optimizer.h"
#include "ps/protocol/schema.h"

namespace gradrail::worker {
namespace {

/// Compares each byte with the one before: memcmp() is faster than a loop that may end at each element.
bool is_zero(absl::Span<const std::byte> bytes) {
  return bytes.empty() ||
         (bytes[0] == std::byte{} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace

ModelMemory::ModelMemory(Schema schema, PushFormat push, ReturnFormat returns)
    : schema_(std::move(schema)), push_(push), returns_(returns), layout_(ps::layout_of(schema_)) {}

absl::Status ModelMemory::allocate(const MemoryBinder& place, const DeviceBlock& device) {
  const size_t bytes = elements() * sizeof(float);
  // The kernel would end a process of this host at the first write to memory that is not there.
  const bool has_rest = device.parameters == nullptr && push_ != PushFormat::fp32;
  GRADRAIL_RETURN_IF_ERROR(check_available_memory(
      fmt::format("a model of {} elements: parameters and gradients of a worker need", elements()),
      static_cast<double>(bytes) * (has_rest ? 3 : 2), "use fewer workers on this host, or a smaller model"));
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory parameters, SharedMemory::create("gradrail-parameters", bytes));
  const size_t gradient_bytes = ps::gradient_at(elements(), elements(), push_);
  GRADRAIL_ASSIGN_OR_RETURN(SharedMemory gradients, SharedMemory::create("gradrail-gradients", gradient_bytes));
  // Placement precedes the first write: pages of memory that was touched keep their NUMA node.
  if (place) {
    place(parameters.span());
    place(gradients.span());
  }
  parameters_ = std::move(parameters);
  gradients_ = std::move(gradients);
  GRADRAIL_RETURN_IF_ERROR(decoder_.allocate(returns_, elements(), place));
  if (device.parameters != nullptr) {
    GRADRAIL_ASSIGN_OR_RETURN(gpu_,
                              GpuVariables::create(device, elements(), push_, parameters_.span(), gradients_.span()));
  } else if (push_ != PushFormat::fp32) {
    GRADRAIL_ASSIGN_OR_RETURN(rest_, SharedMemory::create("gradrail-rest", bytes));
    if (place) place(rest_.span());
  }
  return absl::OkStatus();
}

ps::ElementRange ModelMemory::range(size_t tensor_index) const {
  GRADRAIL_CHECK(tensor_index < schema_.size());
  return {.first = layout_.tensor_first[tensor_index], .count = schema_[tensor_index].elements()};
}

absl::Span<float> ModelMemory::view(const SharedMemory& memory, size_t tensor_index) const {
  const ps::ElementRange tensor = range(tensor_index);
  return {reinterpret_cast<float*>(memory.data()) + tensor.first, tensor.count};
}

uint32_t ModelMemory::parameter_crc32c(ps::ElementRange range) const {
  GRADRAIL_CHECK(range.first + range.count <= elements());
  return crc32c(parameters_.data() + range.first * sizeof(float), range.count * sizeof(float));
}

absl::Status ModelMemory::unpack(const ps::ReturnHeader& header, uint32_t base, const std::byte* packed,
                                 ps::ElementRange range) {
  GRADRAIL_CHECK(range.first + range.count <= elements());
  float* const parameters = reinterpret_cast<float*>(parameters_.data()) + range.first;
  return decoder_.unpack(header, base, packed, range, {parameters, range.count});
}

gpu::CopyTicket ModelMemory::pack(ps::ElementRange range) {
  if (gpu_ != nullptr) return gpu_->pack(range);
  const MemorySpan packed = payload(range, push_);
  const MemorySpan gradients = payload(range, PushFormat::fp32);
  ps::pack(push_, {reinterpret_cast<const float*>(gradients.data), range.count},
           reinterpret_cast<float*>(rest_.data()) + range.first, packed.data);
  return {};
}

MemorySpan ModelMemory::payload(ps::ElementRange range, PushFormat format) const {
  GRADRAIL_CHECK(range.first + range.count <= elements());
  return {.data = gradients_.data() + ps::gradient_at(elements(), range.first, format),
          .bytes = ps::packed_bytes(range.count, format)};
}

absl::Status ModelMemory::fetch_parameters() { return gpu_ == nullptr ? absl::OkStatus() : gpu_->fetch_parameters(); }

absl::Status ModelMemory::begin_offer() {
  const size_t bytes = elements() * sizeof(float);
  if (!is_offering_) {
    if (gpu_ != nullptr) GRADRAIL_RETURN_IF_ERROR(gpu_->fetch_gradients());
    // All gradients are zero before the first step: a start needs no memory for a copy.
    if (!is_zero({gradients_.data(), bytes})) {
      GRADRAIL_ASSIGN_OR_RETURN(kept_gradients_, SharedMemory::create("gradrail-kept-gradients", bytes));
      std::memcpy(kept_gradients_.data(), gradients_.data(), bytes);
    }
    is_offering_ = true;
  }
  std::memcpy(gradients_.data(), parameters_.data(), bytes);
  return gpu_ == nullptr ? absl::OkStatus() : gpu_->upload_gradients();
}

absl::Status ModelMemory::end_offer() {
  if (!std::exchange(is_offering_, false)) return absl::OkStatus();
  const size_t bytes = elements() * sizeof(float);
  const SharedMemory kept = std::move(kept_gradients_);
  if (kept.data() != nullptr) {
    std::memcpy(gradients_.data(), kept.data(), bytes);
  } else {
    std::memset(gradients_.data(), 0, bytes);
  }
  return gpu_ == nullptr ? absl::OkStatus() : gpu_->upload_gradients();
}

}  // namespace gradrail::worker
