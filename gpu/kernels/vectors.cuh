#pragma once

#include "gpu/kernels/common.cuh"

namespace gradrail::gpu::kernels {

extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_sum(const __grid_constant__ SumArguments a) {
  for_quads(a.run, [&](Count q) {
    Quad<float> sum = quads(a.sources[0] + a.run.head)[q];
    GRADRAIL_UNROLL_BY_4
    for (Bits32 s = 1; s < a.source_count; ++s) {
      const Quad<float> read = quads(a.sources[s] + a.run.head)[q];
      GRADRAIL_UNROLL
      for (int e = 0; e < 4; ++e) sum.at[e] += read.at[e];
    }
    GRADRAIL_UNROLL
    for (int e = 0; e < 4; ++e) sum.at[e] *= a.scale;
    quads(a.target + a.run.head)[q] = sum;
  });
  for_singles(a.run, [&](Count i) {
    float sum = a.sources[0][i];
    for (Bits32 s = 1; s < a.source_count; ++s) sum += a.sources[s][i];
    a.target[i] = sum * a.scale;
  });
}

extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_to_bf16(const __grid_constant__ ToBf16Arguments a) {
  for_quads(a.run, [&](Count q) {
    const Quad<float> read = quads(a.source + a.run.head)[q];
    Quad<Bits16> result;
    GRADRAIL_UNROLL
    for (int e = 0; e < 4; ++e) result.at[e] = narrow(read.at[e]);
    quads(a.target + a.run.head)[q] = result;
  });
  for_singles(a.run, [&](Count i) { a.target[i] = narrow(a.source[i]); });
}

extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_from_bf16(const __grid_constant__ FromBf16Arguments a) {
  for_quads(a.run, [&](Count q) {
    const Quad<Bits16> read = quads(a.source + a.run.head)[q];
    Quad<float> result;
    GRADRAIL_UNROLL
    for (int e = 0; e < 4; ++e) result.at[e] = widen(read.at[e]);
    quads(a.target + a.run.head)[q] = result;
  });
  for_singles(a.run, [&](Count i) { a.target[i] = widen(a.source[i]); });
}

}  // namespace gradrail::gpu::kernels
