#include "base/check.h"
#include "ps/optimizer/isa.h"

// Replaces isa_x86.cc on other processors, where the compiler vectorises the generic kernels for the baseline (NEON on
// AArch64).

namespace gradrail::ps {

absl::Span<const Isa> supported_isas() {
  static constexpr Isa kAll[] = {Isa::generic};
  return kAll;
}

const KernelTable& kernels(Isa isa) {
  GRADRAIL_CHECK(isa == Isa::generic);
  return kGenericKernels;
}

}  // namespace gradrail::ps
