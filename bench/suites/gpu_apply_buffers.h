#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu/compute/compute.h"
#include "ps/protocol/mode.h"

namespace gradrail::bench {

/// The formats of a push that pack gradients.
inline constexpr PushFormat kPackedFormats[] = {
    PushFormat::bf16, PushFormat::int8, PushFormat::int4, {PushFormat::topk, 10}, {PushFormat::topk, 100}};

/// A kind of update of a shard.
struct UpdateCase {
  gpu::UpdateRule rule = gpu::UpdateRule::sgd;
  size_t gradients = 1;
  PushFormat format = PushFormat::fp32;  ///< format of the gradients
  size_t targets = 0;
};

/// Every optimizer with one gradient; with more of them, in bf16, with a target, for the cheapest and the dearest. They
/// run on a host and on a GPU.
std::vector<UpdateCase> update_cases();
/// The formats of a push, for the cheapest and the dearest optimizer.
std::vector<UpdateCase> format_cases();
std::string describe(const UpdateCase& c);

/// Bytes of an element within a bucket, scales included.
double gradient_bytes(PushFormat format);
/// The bytes that one element's update reads and writes.
double bytes_per_element(const UpdateCase& c);

/// The memory of one case, filled.
class UpdateBuffers {
 public:
  /// Shapes  each buffer: [count] elements, in the memory of `compute`.
  /// Errors  RESOURCE_EXHAUSTED: the device has too little memory.
  static absl::StatusOr<UpdateBuffers> create(gpu::Compute& compute, const UpdateCase& c, size_t count);

  /// Elements that one update leaves other than ps::apply does, bit for bit.
  absl::StatusOr<uint64_t> check(gpu::Compute& compute, const UpdateCase& c);
  void update(gpu::Compute& compute, const UpdateCase& c);
  /// Copies as many bytes as the parameters have, into a buffer beside them.
  void copy(gpu::Compute& compute);

 private:
  size_t count_ = 0;
  // memories_ owns the memory; the pointers below point into it.
  std::vector<std::unique_ptr<gpu::Memory>> memories_;
  std::byte* copied_ = nullptr;
  float* parameters_ = nullptr;
  float* state_[2] = {nullptr, nullptr};
  std::vector<const void*> gradients_;
  std::vector<float*> targets_;
};

}  // namespace gradrail::bench
