#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "gpu/kernels/arguments.h"

namespace gradrail::gpu::kernels {

struct Buffer {
  const void* data = nullptr;
  size_t element_bytes = sizeof(float);
};

/// Run of a kernel over buffers of `count` elements each, so that every quad is aligned in all of them. Buffers without
/// a common boundary are processed by single elements.
Run run_of(size_t count, absl::Span<const Buffer> buffers);

/// Number of threads that a run keeps busy if each processes `quads` together.
size_t threads_for(const Run& run, size_t quads = 1);

bool is_aligned(const void* data, size_t bytes);

}  // namespace gradrail::gpu::kernels
