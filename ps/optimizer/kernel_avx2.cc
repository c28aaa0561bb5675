#include <immintrin.h>

#include "ps/optimizer/kernel.h"
#include "ps/optimizer/kernel_blocks.h"

namespace gradrail::ps {
namespace {

struct CacheBypass {
  static constexpr size_t kElements = 8;
  static void store(float* target, const float* source) { _mm256_stream_ps(target, _mm256_loadu_ps(source)); }
  static void fence() { _mm_sfence(); }
};

/// The vectors of int8, int4 and delta.
struct Lanes : PlainBlocks {
  static constexpr size_t kElements = 8;
  using Floats [[gnu::vector_size(32)]] = float;
  using Ints [[gnu::vector_size(32)]] = int;
  static Ints widen(const signed char* codes) {
    return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  }
  static Floats root(Floats v) { return _mm256_sqrt_ps(v); }
  static unsigned long long differing(const unsigned short* fresh, const unsigned short* held) {
    const auto equal = [&](size_t j) {
      return _mm256_cmpeq_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(fresh + j)),
                                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(held + j)));
    };
    // Packing works within each half of a register, so that the middle quarters are in the wrong order.
    const auto equal_bits = [&](size_t j) {
      const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(equal(j), equal(j + 16)), 0xd8);
      return static_cast<unsigned long long>(static_cast<unsigned>(_mm256_movemask_epi8(bytes)));
    };
    return ~(equal_bits(0) | equal_bits(32) << 32);
  }
};

}  // namespace
}  // namespace gradrail::ps

#include "ps/optimizer/kernel_body.h"

namespace gradrail::ps {
const KernelTable kAvx2Kernels = kKernels;
}  // namespace gradrail::ps
