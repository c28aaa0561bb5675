#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gpu/compute/compute.h"

// These are the host twin's operations, one loop each; gpu/compute/compute.h describes them.

namespace gradrail::gpu::host {

/// Computes the product by oneDNN, or by loops in a build without it. k > 0.
absl::Status product(const ProductShape& shape, const float* a, const float* b, float* c, bool accumulate);

void bias_activation(size_t rows, size_t columns, const float* bias, Activation f, float* x);
void activation_backward(size_t count, Activation f, const float* y, float* gradient);
void column_sums(size_t rows, size_t columns, const float* x, float* sums);
void softmax_cross_entropy(size_t rows, size_t columns, const uint8_t* labels, float* logits, float* costs);

void im2col(const ImageShape& shape, size_t kernel, const float* images, float* columns);
void col2im(const ImageShape& shape, size_t kernel, const float* columns, float* images);
void max_pool(const ImageShape& shape, const float* images, float* pooled);
void max_pool_backward(const ImageShape& shape, const float* images, const float* pooled_gradient, float* gradient);

void sum(absl::Span<const float* const> sources, size_t count, float scale, float* target);
void update(const UpdateArguments& arguments);

}  // namespace gradrail::gpu::host
