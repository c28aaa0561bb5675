#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace gradrail::worker {

/// Outputs of a network for a batch with numbers as images: [batch, classes], valid until the next call.
using LogitsOf = absl::FunctionRef<const float*(const float* images)>;

struct AccuracyShape {
  size_t batch = 0;  ///< images in one pass of the network; rows after a smaller last batch do not count
  size_t pixels = 0;
  size_t classes = 0;
  void (*scale)(const uint8_t* source, size_t count, float* target) = nullptr;  ///< pixels.h
};

/// Share of images [n, pixels] with the label as the most likely class, in [0, 1]; n > 0.
float accuracy(const AccuracyShape& shape, absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels,
               LogitsOf logits_of);

}  // namespace gradrail::worker
