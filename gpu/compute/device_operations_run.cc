#include "gpu/compute/device_operations_run.h"

#include <algorithm>
#include <cstdint>

namespace gradrail::gpu::kernels {
namespace {

// Four fp32 are 16 bytes, the longest load of a thread; four bf16 are 8.
constexpr size_t kQuad = 4;

bool all_aligned(absl::Span<const Buffer> buffers, size_t head) {
  return std::all_of(buffers.begin(), buffers.end(), [&](const Buffer& buffer) {
    const size_t address = reinterpret_cast<uintptr_t>(buffer.data) + head * buffer.element_bytes;
    return address % (kQuad * buffer.element_bytes) == 0;
  });
}

}  // namespace

Run run_of(size_t count, absl::Span<const Buffer> buffers) {
  // All buffers advance by the same number of elements: a common boundary is within four elements, or nowhere.
  for (size_t head = 0; head < std::min(count, kQuad); ++head) {
    if (all_aligned(buffers, head)) return {.count = count, .head = head, .quads = (count - head) / kQuad};
  }
  // The head is the part before the first quad: here it is everything.
  return {.count = count, .head = count, .quads = 0};
}

size_t threads_for(const Run& run, size_t quads) {
  // The same threads take the quads, then the single elements of head and tail.
  return std::max<size_t>((run.quads + quads - 1) / quads, run.count - kQuad * run.quads);
}

bool is_aligned(const void* data, size_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

}  // namespace gradrail::gpu::kernels
