#pragma once

#include "gpu/kernels/common.cuh"

namespace gradrail::gpu::kernels {

__device__ inline float activate(Function f, float x) {
  if (f == Function::sigmoid) return 1.0f / (1.0f + expf(-x));
  if (f == Function::relu) return x < 0.0f ? 0.0f : x;  // this order passes NaN through: a diverged model must show
  return x;
}

__device__ inline float activate_backward(Function f, float y, float gradient) {
  if (f == Function::sigmoid) return gradient * (y * (1.0f - y));
  return y > 0.0f ? gradient : 0.0f;
}

extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_bias_activation(
    const __grid_constant__ BiasActivationArguments a) {
  if (a.by_quads != 0) {
    const Bits32 columns = a.columns / 4;
    for (Count q = thread_index(); q < a.rows * columns; q += thread_count()) {
      Count row = q;
      const Quad<float> bias = quads(a.bias)[split(row, columns)];
      Quad<float> x = quads(a.x)[q];
      GRADRAIL_UNROLL
      for (int e = 0; e < 4; ++e) x.at[e] = activate(a.function, x.at[e] + bias.at[e]);
      quads(a.x)[q] = x;
    }
    return;
  }
  for (Count i = thread_index(); i < a.rows * a.columns; i += thread_count()) {
    Count row = i;
    a.x[i] = activate(a.function, a.x[i] + a.bias[split(row, a.columns)]);
  }
}

extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_activation_backward(
    const __grid_constant__ ActivationBackwardArguments a) {
  for_quads(a.run, [&](Count q) {
    const Quad<float> y = quads(a.y + a.run.head)[q];
    Quad<float> gradient = quads(a.gradient + a.run.head)[q];
    GRADRAIL_UNROLL
    for (int e = 0; e < 4; ++e) gradient.at[e] = activate_backward(a.function, y.at[e], gradient.at[e]);
    quads(a.gradient + a.run.head)[q] = gradient;
  });
  for_singles(a.run, [&](Count i) { a.gradient[i] = activate_backward(a.function, a.y[i], a.gradient[i]); });
}

/// Computes each row in one thread: a batch has hundreds of rows of ten, and the call costs more than the work.
extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_softmax_cross_entropy(
    const __grid_constant__ SoftmaxArguments a) {
  for (Count row = thread_index(); row < a.rows; row += thread_count()) {
    float* logits = a.logits + row * a.columns;
    float largest = logits[0];
    for (Bits32 j = 1; j < a.columns; ++j) largest = logits[j] > largest ? logits[j] : largest;
    const float wanted = logits[a.labels[row]] - largest;
    float total = 0.0f;
    for (Bits32 j = 0; j < a.columns; ++j) {
      const float share = expf(logits[j] - largest);
      logits[j] = share;
      total += share;
    }
    a.costs[row] = logf(total) - wanted;
    const float scale = a.share / total;
    for (Bits32 j = 0; j < a.columns; ++j) logits[j] *= scale;
    logits[a.labels[row]] -= a.share;
  }
}

}  // namespace gradrail::gpu::kernels
