#include "worker/client/gpu_variables.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gpu/direct/dma_buf.h"
#include "gpu/direct/ipc.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/path_check.h"
#include "ps/protocol/push_format.h"
#include "ps/protocol/schema.h"

namespace gradrail::worker {
namespace {

gpu::GradientFormat format_of(PushFormat format) {
  static_assert(static_cast<int>(gpu::GradientFormat::int4) == static_cast<int>(PushFormat::int4));
  return static_cast<gpu::GradientFormat>(format.kind);
}

}  // namespace

GpuVariables::GpuVariables(const DeviceBlock& block, size_t elements, PushFormat push, MemorySpan parameters,
                           MemorySpan gradients)
    : block_(block), elements_(elements), push_(push), host_parameters_(parameters), host_gradients_(gradients) {}

absl::StatusOr<std::unique_ptr<GpuVariables>> GpuVariables::create(const DeviceBlock& block, size_t elements,
                                                                   PushFormat push, MemorySpan parameters,
                                                                   MemorySpan gradients) {
  std::unique_ptr<GpuVariables> variables(new GpuVariables(block, elements, push, parameters, gradients));
  GRADRAIL_ASSIGN_OR_RETURN(variables->device_, gpu::open_device(block.ordinal));
  // Not an error: a network device can reach memory that no process can map.
  variables->ipc_key_ = gpu::export_memory(*variables->device_, block.parameters, block.bytes);
  GRADRAIL_ASSIGN_OR_RETURN(variables->copies_, gpu::staged_copies(*variables->device_));
  if (push != PushFormat::fp32) GRADRAIL_RETURN_IF_ERROR(variables->prepare_packing());
  variables->pins_[0] = variables->pin(parameters);
  variables->pins_[1] = variables->pin(gradients);
  return variables;
}

GpuVariables::~GpuVariables() = default;

/// The layout of ps/protocol/exchange_layout.h, up to this byte.
absl::Status GpuVariables::check_block(size_t needed, std::string_view purpose) const {
  if (block_.gradients != block_.parameters + ps::device_gradients_at(elements_)) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: the gradients do not lie {} bytes behind the parameters in GPU memory", purpose, gradients_at()));
  }
  if (block_.bytes >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{}: the block of GPU memory has {} bytes, and {} are required", purpose, block_.bytes, needed));
}

absl::Status GpuVariables::prepare_packing() {
  if (!ps::is_for_gpus(push_)) {
    return absl::FailedPreconditionError(
        fmt::format("push {}: a GPU does not pack it (towers on CPUs pack all formats)", push_format_name(push_)));
  }
  GRADRAIL_RETURN_IF_ERROR(
      check_block(ps::device_check_at(elements_, push_), fmt::format("push {}", push_format_name(push_))));
  gpu::Compute& device = *device_;
  const size_t rest_bytes = std::max<size_t>(elements_, 1) * sizeof(float);
  absl::StatusOr<std::unique_ptr<gpu::Memory>> allocated = device.allocate(rest_bytes);
  if (!allocated.ok()) {
    return absl::Status(allocated.status().code(),
                        fmt::format("push {} needs {} bytes more for what the rounding leaves: {}",
                                    push_format_name(push_), rest_bytes, message_of(allocated.status())));
  }
  rest_ = *std::move(allocated);
  // Memory of a device is not cleared.
  const std::vector<float> zeros(elements_);
  device.upload(rest_->data(), zeros.data(), zeros.size() * sizeof(float));
  GRADRAIL_RETURN_IF_ERROR(device.finish());
  // The first launch of a kernel loads it, and a device may stop for this time: not while towers reduce.
  auto* const rest = rest_->as<float>();
  std::byte* const packed = reinterpret_cast<std::byte*>(block_.gradients) + place_of({});
  copies_->pack(format_of(push_), elements_, rest, rest, packed);
  return copies_->finish();
}

/// A failure costs speed only: copies from pageable memory work as well.
std::unique_ptr<gpu::Pin> GpuVariables::pin(const MemorySpan& memory) const {
  absl::StatusOr<std::unique_ptr<gpu::Pin>> pinned = device_->pin(memory.data, memory.bytes);
  if (pinned.ok()) return *std::move(pinned);
  log_info("host memory is not pinned, so that copies of {} are slower: {}", device_->name(),
           message_of(pinned.status()));
  return nullptr;
}

absl::StatusOr<MemorySpan> GpuVariables::block(NicGpuTransfer way) {
  const size_t bytes = ps::device_block_bytes(elements_, push_);
  GRADRAIL_RETURN_IF_ERROR(check_block(bytes, "a check of the path"));
  std::unique_ptr<GpuMemorySource>& source = sources_[static_cast<size_t>(way)];
  if (source == nullptr) {
    GRADRAIL_ASSIGN_OR_RETURN(std::unique_ptr<GpuMemorySource> made, gpu::source_for_nics(*device_, way));
    GRADRAIL_RETURN_IF_ERROR(gpu::prepare_for_peers(*device_, block_.parameters));
    source = std::move(made);
  }
  return MemorySpan{.data = reinterpret_cast<std::byte*>(block_.parameters),
                    .bytes = bytes,
                    .kind = MemoryKind::cuda,
                    .gpu = source.get()};
}

uint64_t GpuVariables::gradients_at() const { return ps::device_gradients_at(elements_) * sizeof(float); }

uint64_t GpuVariables::check_out_offset() const { return ps::device_check_at(elements_, push_); }

/// Bytes behind the first gradient, on the device as in the host's copy: of gradients in the format of the push.
uint64_t GpuVariables::place_of(ps::ElementRange range) const {
  GRADRAIL_CHECK(range.first + range.count <= elements_);
  return ps::gradient_at(elements_, range.first, push_);
}

absl::Status GpuVariables::write_check(uint64_t seed) {
  GRADRAIL_RETURN_IF_ERROR(check_block(ps::device_block_bytes(elements_, push_), "a check of the path"));
  // Both halves are cleared: the remains of an earlier check must not pass for the answer to this one.
  std::vector<std::byte> both(2 * ps::kCheckBytes);
  ps::fill_check(absl::MakeSpan(both).first(ps::kCheckBytes), seed);
  copies_->upload(reinterpret_cast<std::byte*>(block_.parameters) + check_out_offset(), both.data(), both.size());
  return copies_->finish();
}

std::string GpuVariables::compare_check(uint64_t seed) {
  nic_wrote();
  std::vector<std::byte> arrived(ps::kCheckBytes);
  absl::Status read = finish_transfers();
  copies_->download(arrived.data(), reinterpret_cast<std::byte*>(block_.parameters) + check_in_offset(),
                    arrived.size());
  read.Update(copies_->finish());
  return read.ok() ? ps::compare_check(arrived, seed) : std::string(message_of(read));
}

gpu::CopyTicket GpuVariables::pack(ps::ElementRange range) {
  std::byte* const packed = reinterpret_cast<std::byte*>(block_.gradients) + place_of(range);
  return copies_->pack(format_of(push_), range.count, block_.gradients + range.first, rest_->as<float>() + range.first,
                       packed);
}

gpu::CopyTicket GpuVariables::download_gradients(ps::ElementRange range) {
  const uint64_t place = place_of(range);
  return copies_->download(host_gradients_.data + place, reinterpret_cast<const std::byte*>(block_.gradients) + place,
                           ps::packed_bytes(range.count, push_));
}

void GpuVariables::upload_parameters(ps::ElementRange range) {
  GRADRAIL_CHECK(range.first + range.count <= elements_);
  const size_t bytes = range.count * sizeof(float);
  copies_->upload(block_.parameters + range.first, host_parameters_.data + range.first * sizeof(float), bytes);
}

absl::Status GpuVariables::finish_transfers() {
  // The event of a put confirms the order of the bytes on the bus. Some GPUs need a flush before kernels read them.
  if (std::exchange(unflushed_, false) && gpu::needs_flush(*device_)) {
    flushed_.Update(gpu::flush_nic_writes(*device_));
    GRADRAIL_RETURN_IF_ERROR(flushed_);
    ++flushes_;
  }
  return copies_->finish();
}

absl::Status GpuVariables::fetch_gradients() {
  copies_->download(host_gradients_.data, block_.gradients, elements_ * sizeof(float));
  return copies_->finish();
}

absl::Status GpuVariables::upload_gradients() {
  copies_->upload(block_.gradients, host_gradients_.data, elements_ * sizeof(float));
  return copies_->finish();
}

absl::Status GpuVariables::fetch_parameters() {
  copies_->download(host_parameters_.data, block_.parameters, host_parameters_.bytes);
  return copies_->finish();
}

}  // namespace gradrail::worker

namespace gradrail {

DeviceLayout device_layout(const Schema& schema, PushFormat push) {
  const uint64_t elements = ps::layout_of(schema).elements;
  return {.gradients_at = ps::device_gradients_at(elements), .bytes = ps::device_block_bytes(elements, push)};
}

}  // namespace gradrail
