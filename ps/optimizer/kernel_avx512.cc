#include <immintrin.h>

#include "ps/optimizer/kernel.h"

namespace gradrail::ps {
namespace {

struct CacheBypass {
  static constexpr size_t kElements = 16;
  static void store(float* target, const float* source) { _mm512_stream_ps(target, _mm512_loadu_ps(source)); }
  static void fence() { _mm_sfence(); }
};

/// The vectors of int8, int4 and delta. Those of delta are as PlainBlocks (kernel_blocks.h).
struct Lanes {
  static constexpr size_t kElements = 16;
  using Floats [[gnu::vector_size(64)]] = float;
  using Ints [[gnu::vector_size(64)]] = int;
  static Ints widen(const signed char* codes) {
    // The form with a mask: GCC 12 warns of the undefined vector in the plain one.
    return (Ints)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }
  static Floats root(Floats v) { return _mm512_maskz_sqrt_ps(0xffff, v); }
  /// 16 elements of 16 bits, each in 32.
  static __m512i wide(const void* elements) {
    return _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(elements)));
  }
  static void narrow(void* elements, __m512i values) {
    _mm256_storeu_si256(static_cast<__m256i*>(elements), _mm512_maskz_cvtepi32_epi16(0xffff, values));
  }
  static unsigned long long differing(const unsigned short* fresh, const unsigned short* held) {
    unsigned long long mask = 0;
    for (size_t j = 0; j < 64; j += 16)
      mask |= static_cast<unsigned long long>(_mm512_cmpneq_epu32_mask(wide(fresh + j), wide(held + j))) << j;
    return mask;
  }
  static void choose(unsigned char* chosen, const unsigned short* fresh, unsigned long long mask) {
    for (size_t j = 0; j < 64; j += 16) {
      const auto part = static_cast<__mmask16>(mask >> j);
      narrow(chosen, _mm512_maskz_compress_epi32(part, wide(fresh + j)));
      chosen += 2 * static_cast<size_t>(__builtin_popcount(part));
    }
  }
  static void replace(unsigned short* held, const unsigned char* chosen, unsigned long long mask) {
    for (size_t j = 0; j < 64; j += 16) {
      const auto part = static_cast<__mmask16>(mask >> j);
      narrow(held + j, _mm512_mask_expand_epi32(wide(held + j), part, wide(chosen)));
      chosen += 2 * static_cast<size_t>(__builtin_popcount(part));
    }
  }
};

}  // namespace
}  // namespace gradrail::ps

#include "ps/optimizer/kernel_body.h"

namespace gradrail::ps {
const KernelTable kAvx512Kernels = kKernels;
}  // namespace gradrail::ps
