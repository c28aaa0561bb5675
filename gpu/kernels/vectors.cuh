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

template <typename Element>
__device__ void pack_elements(const PackArguments& a) {
  Element* const packed = static_cast<Element*>(a.packed);
  for_quads(a.run, [&](Count q) {
    const Quad<float> gradient = quads(a.gradient + a.run.head)[q];
    Quad<float> rest = quads(a.rest + a.run.head)[q];
    Quad<Element> elements;
    GRADRAIL_UNROLL
    for (int e = 0; e < 4; ++e) elements.at[e] = pack_element<Element>(gradient.at[e], rest.at[e]);
    quads(packed + a.run.head)[q] = elements;
    quads(a.rest + a.run.head)[q] = rest;
  });
  for_singles(a.run, [&](Count i) { packed[i] = pack_element<Element>(a.gradient[i], a.rest[i]); });
}

/// A thread packs a block: its scale needs all of it.
template <int kCodes>
__device__ void pack_blocks(const PackArguments& a) {
  using Format = Blocks<kCodes>;
  Bits16* const scales = static_cast<Bits16*>(a.packed);
  for (Count block = thread_index(); block < Format::block_count(a.run.count); block += thread_count()) {
    const Count first = block * kBlock;
    auto* const codes = static_cast<signed char*>(a.packed) + Format::codes_at(a.run.count, block);
    scales[block] =
        Format::pack_block(a.gradient + first, a.rest + first, codes, Format::elements_of(a.run.count, block));
  }
}

extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_pack_bf16(const __grid_constant__ PackArguments a) {
  pack_elements<Bf16>(a);
}
extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_pack_int8(const __grid_constant__ PackArguments a) {
  pack_blocks<127>(a);
}
extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_pack_int4(const __grid_constant__ PackArguments a) {
  pack_blocks<7>(a);
}

}  // namespace gradrail::gpu::kernels
