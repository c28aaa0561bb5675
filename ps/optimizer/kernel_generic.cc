#include "ps/optimizer/kernel.h"
#include "ps/optimizer/kernel_blocks.h"

namespace gradrail::ps {
namespace {

/// Plain C++ has no store that bypasses the cache: apply() writes through the cache.
struct CacheBypass {
  static constexpr size_t kElements = 1;
  static void store(float* target, const float* source) { *target = *source; }
  static void fence() {}
};

/// The vectors of int8, int4 and delta. GCC and Clang compile them for any processor.
struct Lanes : PlainBlocks {
  static constexpr size_t kElements = 4;
  using Floats [[gnu::vector_size(16)]] = float;
  using Ints [[gnu::vector_size(16)]] = int;
  using Bytes [[gnu::vector_size(16)]] = signed char;
  using Shorts [[gnu::vector_size(16)]] = short;
  static Ints widen(const signed char* codes) {
    int four = 0;
    __builtin_memcpy(&four, codes, sizeof(four));
    // Each byte four times, so that it is the upper one in either byte order. These orders of elements are one
    // instruction each of SSE2 and NEON.
    const auto bytes = (Bytes)Ints{four};
    const auto twice =
        (Shorts)__builtin_shufflevector(bytes, bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return (Ints)__builtin_shufflevector(twice, twice, 0, 8, 1, 9, 2, 10, 3, 11) >> 24;
  }
  static Floats root(Floats v) {
    return Floats{__builtin_sqrtf(v[0]), __builtin_sqrtf(v[1]), __builtin_sqrtf(v[2]), __builtin_sqrtf(v[3])};
  }
};

}  // namespace
}  // namespace gradrail::ps

#include "ps/optimizer/kernel_body.h"

namespace gradrail::ps {
const KernelTable kGenericKernels = kKernels;
}  // namespace gradrail::ps
