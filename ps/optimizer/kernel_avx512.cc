#include <immintrin.h>

#include "ps/optimizer/kernel.h"

namespace gradrail::ps {
namespace {

struct CacheBypass {
  static constexpr size_t kElements = 16;
  static void store(float* target, const float* source) { _mm512_stream_ps(target, _mm512_loadu_ps(source)); }
  static void fence() { _mm_sfence(); }
};

/// The vectors of int8 and int4.
struct Lanes {
  static constexpr size_t kElements = 16;
  using Floats [[gnu::vector_size(64)]] = float;
  using Ints [[gnu::vector_size(64)]] = int;
  static Ints widen(const signed char* codes) {
    // The form with a mask: GCC 12 warns of the undefined vector in the plain one.
    return (Ints)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }
  static Floats root(Floats v) { return _mm512_maskz_sqrt_ps(0xffff, v); }
};

}  // namespace
}  // namespace gradrail::ps

#include "ps/optimizer/kernel_body.h"

namespace gradrail::ps {
const KernelTable kAvx512Kernels = kKernels;
}  // namespace gradrail::ps
