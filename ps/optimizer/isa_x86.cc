#include <array>

#include "base/check.h"
#include "ps/optimizer/isa.h"

namespace gradrail::ps {

absl::Span<const Isa> supported_isas() {
  static constexpr std::array kAll = {Isa::generic, Isa::avx2, Isa::avx512};
  // Includes the check that the kernel saves the registers.
  static const size_t count = [] {
    if (!__builtin_cpu_supports("avx2")) return 1;
    // The compiler uses these three extensions in the AVX-512 kernels.
    const bool avx512 =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? 3 : 2;
  }();
  return absl::MakeConstSpan(kAll.data(), count);
}

const KernelTable& kernels(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return kGenericKernels;
    case Isa::avx2:
      return kAvx2Kernels;
    case Isa::avx512:
      return kAvx512Kernels;
  }
  GRADRAIL_CHECK(false);
}

}  // namespace gradrail::ps
