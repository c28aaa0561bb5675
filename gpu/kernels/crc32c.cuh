#pragma once

#include "gpu/kernels/common.cuh"

namespace gradrail::gpu::kernels {

constexpr Bits32 kCrc32cPolynomial = 0x82f63b78u;  // bit-reversed 0x1edc6f41

/// slice[k][b]: what byte b contributes when k bytes follow it in its word.
struct Crc32cSlices {
  Bits32 slice[4][256];
};

constexpr Crc32cSlices make_crc32c_slices() {
  Crc32cSlices tables{};
  for (Bits32 b = 0; b < 256; ++b) {
    Bits32 rest = b;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (kCrc32cPolynomial & (0u - (rest & 1u)));
    tables.slice[0][b] = rest;
  }
  for (int k = 1; k < 4; ++k) {
    for (Bits32 b = 0; b < 256; ++b) {
      const Bits32 previous = tables.slice[k - 1][b];
      tables.slice[k][b] = tables.slice[0][previous & 255u] ^ (previous >> 8);
    }
  }
  return tables;
}

// The table is in global memory, not constant memory: threads look up different entries, which the first cache serves
// side by side.
__device__ constexpr Crc32cSlices kCrc32cSlices = make_crc32c_slices();

__device__ inline Bits32 crc32c_byte(Bits32 rest, Bytes byte) {
  return kCrc32cSlices.slice[0][(rest ^ byte) & 255u] ^ (rest >> 8);
}

__device__ inline Bits32 crc32c_word(Bits32 rest, Bits32 word) {
  word ^= rest;
  return kCrc32cSlices.slice[3][word & 255u] ^ kCrc32cSlices.slice[2][word >> 8 & 255u] ^
         kCrc32cSlices.slice[1][word >> 16 & 255u] ^ kCrc32cSlices.slice[0][word >> 24];
}

/// Rest of [first, end), beginning with a rest of zero.
__device__ inline Bits32 crc32c_run(const Bytes* first, const Bytes* end) {
  using Words = Quad<Bits32>;
  Bits32 rest = 0;
  for (; first < end && reinterpret_cast<Count>(first) % sizeof(Words) != 0; ++first) rest = crc32c_byte(rest, *first);
  for (; end - first >= static_cast<long long>(sizeof(Words)); first += sizeof(Words)) {
    const Words words = *reinterpret_cast<const Words*>(first);
    GRADRAIL_UNROLL
    for (int w = 0; w < 4; ++w) rest = crc32c_word(rest, words.at[w]);
  }
  for (; first < end; ++first) rest = crc32c_byte(rest, *first);
  return rest;
}

/// Product of two polynomials modulo the polynomial; the highest bit is x^0.
__device__ inline Bits32 crc32c_multiply(Bits32 a, Bits32 b) {
  Bits32 product = 0;
  for (Bits32 bit = 0x80000000u; bit != 0; bit >>= 1) {
    product ^= (a & bit) != 0 ? b : 0u;
    b = (b >> 1) ^ (kCrc32cPolynomial & (0u - (b & 1u)));
  }
  return product;
}

extern "C" __global__ GRADRAIL_KERNEL_BOUNDS void gradrail_crc32c(const __grid_constant__ Crc32cArguments a) {
  for (Count run = thread_index(); run < a.runs; run += thread_count()) {
    const Bits32 runs_behind = a.runs - 1 - static_cast<Bits32>(run);
    const Count end = a.bytes - runs_behind * a.run_bytes;
    const Count first = end < a.run_bytes ? 0 : end - a.run_bytes;
    Bits32 rest = crc32c_run(a.data + first, a.data + end);
    for (int k = 0; k < 32; ++k) {
      if ((runs_behind >> k & 1u) != 0) rest = crc32c_multiply(rest, a.powers[k]);
    }
    a.partials[run] = rest;
  }
}

}  // namespace gradrail::gpu::kernels
