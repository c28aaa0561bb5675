#include "ps/optimizer/kernel.h"

namespace gradrail::ps {
namespace {

/// Plain C++ has no store that bypasses the cache: apply() writes through the cache.
struct CacheBypass {
  static constexpr size_t kElements = 1;
  static void store(float* target, const float* source) { *target = *source; }
  static void fence() {}
};

}  // namespace
}  // namespace gradrail::ps

#include "ps/optimizer/kernel_body.h"

namespace gradrail::ps {
const KernelTable kGenericKernels = kKernels;
}  // namespace gradrail::ps
