#include <immintrin.h>

#include "ps/optimizer/kernel.h"

namespace gradrail::ps {
namespace {

struct CacheBypass {
  static constexpr size_t kElements = 8;
  static void store(float* target, const float* source) { _mm256_stream_ps(target, _mm256_loadu_ps(source)); }
  static void fence() { _mm_sfence(); }
};

/// The vectors of int8 and int4.
struct Lanes {
  static constexpr size_t kElements = 8;
  using Floats [[gnu::vector_size(32)]] = float;
  using Ints [[gnu::vector_size(32)]] = int;
  static Ints widen(const signed char* codes) {
    return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  }
  static Floats root(Floats v) { return _mm256_sqrt_ps(v); }
};

}  // namespace
}  // namespace gradrail::ps

#include "ps/optimizer/kernel_body.h"

namespace gradrail::ps {
const KernelTable kAvx2Kernels = kKernels;
}  // namespace gradrail::ps
