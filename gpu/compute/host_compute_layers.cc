#include <algorithm>
#include <cmath>

#include "gpu/compute/host_compute_loops.h"

namespace gradrail::gpu::host {
namespace {

float activate(Activation f, float x) {
  switch (f) {
    case Activation::none:
      return x;
    case Activation::sigmoid:
      return 1.0f / (1.0f + std::exp(-x));
    case Activation::relu:
      return x < 0.0f ? 0.0f : x;  // this order passes NaN through: a diverged model must show
  }
  return x;
}

/// Σ exp(values − largest); the values become those exponentials.
float exponentials(float* values, size_t count, float largest) {
  float total = 0.0f;
  for (size_t j = 0; j < count; ++j) {
    values[j] = std::exp(values[j] - largest);
    total += values[j];
  }
  return total;
}

}  // namespace

void bias_activation(size_t rows, size_t columns, const float* bias, Activation f, float* x) {
  for (size_t i = 0; i < rows; ++i, x += columns) {
    for (size_t j = 0; j < columns; ++j) x[j] = activate(f, x[j] + bias[j]);
  }
}

void activation_backward(size_t count, Activation f, const float* y, float* gradient) {
  if (f == Activation::sigmoid) {
    for (size_t i = 0; i < count; ++i) gradient[i] *= y[i] * (1.0f - y[i]);
  } else if (f == Activation::relu) {
    for (size_t i = 0; i < count; ++i) gradient[i] = y[i] > 0.0f ? gradient[i] : 0.0f;
  }
}

void column_sums(size_t rows, size_t columns, const float* x, float* sums) {
  // Row by row: the inner loop runs over adjacent elements, so that the compiler vectorises it.
  std::fill_n(sums, columns, 0.0f);
  for (size_t i = 0; i < rows; ++i, x += columns) {
    for (size_t j = 0; j < columns; ++j) sums[j] += x[j];
  }
}

void softmax_cross_entropy(size_t rows, size_t columns, const uint8_t* labels, float* logits, float* costs) {
  const float share = 1.0f / static_cast<float>(rows);
  for (size_t i = 0; i < rows; ++i, logits += columns) {
    // Subtracted before exp(), which overflows fp32 above 88. The quotient stays the same.
    const float largest = *std::max_element(logits, logits + columns);
    const float wanted = logits[labels[i]] - largest;
    const float total = exponentials(logits, columns, largest);
    costs[i] = std::log(total) - wanted;
    for (size_t j = 0; j < columns; ++j) logits[j] *= share / total;
    logits[labels[i]] -= share;
  }
}

}  // namespace gradrail::gpu::host
