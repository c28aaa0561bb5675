#include <immintrin.h>

#include "ps/optimizer/kernel.h"

namespace gradrail::ps {
namespace {

struct CacheBypass {
  static constexpr size_t kElements = 16;
  static void store(float* target, const float* source) { _mm512_stream_ps(target, _mm512_loadu_ps(source)); }
  static void fence() { _mm_sfence(); }
};

}  // namespace
}  // namespace gradrail::ps

#include "ps/optimizer/kernel_body.h"

namespace gradrail::ps {
const KernelTable kAvx512Kernels = kKernels;
}  // namespace gradrail::ps
