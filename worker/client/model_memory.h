#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/memory.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/shard_map.h"
#include "worker/client/gpu_variables.h"
#include "worker/client/paths/return_decoder.h"

namespace gradrail::worker {

/// The variables of the model: parameters and gradients in host memory, tensor after tensor in the order of the schema.
/// Where the model computes on a GPU, they are copies of the variables in GPU memory.
/// Shapes   Both blocks: [elements()], fp32. An element has the same offset in both (ps::Layout). If the push has
///          another format, the packed gradients follow the gradients (ps/protocol/exchange_layout.h).
/// Threads  Owner thread.
class ModelMemory {
 public:
  ModelMemory(Schema schema, PushFormat push, ReturnFormat returns = ReturnFormat::fp32);

  /// `place` is called for both blocks before their first use; it may be empty. `device.parameters` may be null.
  /// Errors  RESOURCE_EXHAUSTED: no memory. Else as GpuVariables::create().
  absl::Status allocate(const MemoryBinder& place, const DeviceBlock& device);

  const Schema& schema() const { return schema_; }
  uint64_t elements() const { return layout_.elements; }
  const ps::Layout& layout() const { return layout_; }
  /// Elements of one tensor in the flattened model.
  ps::ElementRange range(size_t tensor_index) const;

  /// Shapes  [elements of the tensor].
  absl::Span<float> parameters(size_t tensor_index) { return view(parameters_, tensor_index); }
  absl::Span<float> gradients(size_t tensor_index) { return view(gradients_, tensor_index); }
  MemorySpan parameter_span() const { return parameters_.span(); }
  MemorySpan gradient_span() const { return gradients_.span(); }

  PushFormat push_format() const { return push_; }
  /// Packs the gradients of a range in the format of the push. Each gradient is packed once: the remainder of the
  /// rounding is added to the next one. If the variables are on a GPU, a kernel packs them; gpu()->is_done() reports
  /// the end.
  gpu::CopyTicket pack(ps::ElementRange range);
  /// The place of a range in gradient_span(), in this format.
  MemorySpan payload(ps::ElementRange range, PushFormat format) const;

  /// Stores an answer in bf16 or delta, as ReturnDecoder::unpack().
  absl::Status unpack(const ps::ReturnHeader& header, uint32_t base, const std::byte* packed, ps::ElementRange range);

  /// Checksum of a range in host memory, as the headers of the exchange carry it.
  uint32_t parameter_crc32c(ps::ElementRange range) const;

  /// Null where variables are in host memory only.
  GpuVariables* gpu() const { return gpu_.get(); }
  /// Copies the parameters from the GPU to the host; nothing to do without a GPU.
  absl::Status fetch_parameters();

  /// Copies the host's parameters to the memory that gradients leave from. Initial values are sent from there: a bucket
  /// may have to leave again after its answer has overwritten the parameters. A second call takes newer parameters.
  /// Errors  RESOURCE_EXHAUSTED: no memory for gradients that the trainer has written. UNAVAILABLE: the GPU was lost.
  absl::Status begin_offer();
  /// Puts the gradients back, once no shard reads the offer any more. Without an offer it has no effect.
  /// Errors  UNAVAILABLE: the GPU was lost.
  absl::Status end_offer();

 private:
  absl::Span<float> view(const SharedMemory& memory, size_t tensor_index) const;

  const Schema schema_;
  const PushFormat push_;
  const ReturnFormat returns_;
  const ps::Layout layout_;
  SharedMemory parameters_;
  SharedMemory gradients_;       ///< [gradients][gap][packed gradients]
  bool is_offering_ = false;     ///< the memory of the gradients contains the initial values
  SharedMemory kept_gradients_;  ///< gradients during an offer; empty: all of them are zero
  /// Sum of the rounding remainders of all gradients by element, fp32. Empty with a GPU, which has its own.
  SharedMemory rest_;
  ReturnDecoder decoder_;
  std::unique_ptr<GpuVariables> gpu_;
};

}  // namespace gradrail::worker
