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

/// Rounds gradient + rest, and keeps what the rounding leaves out. The rest of a value that is not finite is 0.
__device__ inline Bits16 pack(float gradient, float& rest) {
  const float exact = gradient + rest;
  const Bits16 packed = narrow(exact);
  const bool is_finite = (packed & 0x7f80u) != 0x7f80u;
  rest = is_finite ? exact - widen(packed) : 0.0f;
  return packed;
}

extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_pack_bf16(const __grid_constant__ PackBf16Arguments a) {
  for_quads(a.run, [&](Count q) {
    const Quad<float> gradient = quads(a.gradient + a.run.head)[q];
    Quad<float> rest = quads(a.rest + a.run.head)[q];
    Quad<Bits16> packed;
    GRADRAIL_UNROLL
    for (int e = 0; e < 4; ++e) packed.at[e] = pack(gradient.at[e], rest.at[e]);
    quads(a.packed + a.run.head)[q] = packed;
    quads(a.rest + a.run.head)[q] = rest;
  });
  for_singles(a.run, [&](Count i) { a.packed[i] = pack(a.gradient[i], a.rest[i]); });
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
