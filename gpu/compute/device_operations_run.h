#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "gpu/kernels/arguments.h"

namespace gradrail::gpu::kernels {

struct Buffer {
  const void* data = nullptr;
  size_t element_bytes = sizeof(float);
};

/// How a kernel shall walk buffers of `count` elements each, so that every quad is aligned in every one of them.
/// Buffers that never come to a common boundary are walked by single elements.
Run run_of(size_t count, absl::Span<const Buffer> buffers);

/// Threads that a run keeps busy when each takes `quads` at once.
size_t threads_for(const Run& run, size_t quads = 1);

bool is_aligned(const void* data, size_t bytes);

}  // namespace gradrail::gpu::kernels
