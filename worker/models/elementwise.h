#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace gradrail::worker {

// The parts of a network between its products: loops that the compiler vectorises. All matrices are row-major.
// Source  exp: Cephes' expf (range reduction in two steps, polynomial of degree 6); within 2 units in the last place.

/// values[i] = exp(values[i]); arguments beyond ±87 are taken as ±87, where float ends. NaN stays NaN.
void exponential(float* values, size_t count);

/// values[i] = 1 / (1 + exp(-values[i])).
void sigmoid(float* values, size_t count);

/// gradient *= hidden * (1 - hidden), the step back through sigmoid; writes the sum of the result's rows to
/// `column_sums`.
/// Shapes   hidden, gradient: [rows, columns], column_sums: [columns].
void sigmoid_backward(const float* hidden, float* gradient, size_t rows, size_t columns, float* column_sums);

/// values[i] = max(values[i], 0); NaN stays NaN.
void relu(float* values, size_t count);

/// The step back through relu(), where its result was not above zero: gradient[i] = 0.
void relu_backward(const float* result, float* gradient, size_t count);

/// target[i] = (((source[0][i] + source[1][i]) + …) · 1/n, in this order.
void average(absl::Span<const float* const> sources, size_t count, float* target);

/// column_sums[j] = Σi values[i, j].
void sum_rows(const float* values, size_t rows, size_t columns, float* column_sums);

struct SoftmaxLoss {
  float cost = 0.0f;   ///< mean over the rows of -log softmax(logits)[label]
  size_t correct = 0;  ///< rows in which the first largest logit is that of the label
};

/// Turns the logits into the gradient of the mean cost.
/// Shapes   logits: [rows, classes], labels: [rows], each below `classes`.
SoftmaxLoss softmax_cross_entropy(float* logits, const uint8_t* labels, size_t rows, size_t classes);

}  // namespace gradrail::worker
