#include "ps/ablation.h"

#include <algorithm>

namespace gradrail::ps {

void store_mean(float* parameters, size_t count, absl::Span<const float* const> gradients,
                absl::Span<float* const> targets) {
  constexpr size_t kAtOnce = 1024;  // in the first cache from one gradient to the next, as the kernels' sums are
  const float scale = 1.0f / static_cast<float>(gradients.size());
  for (size_t first = 0; first < count; first += kAtOnce) {
    const size_t some = std::min(kAtOnce, count - first);
    float* const mean = parameters + first;
    std::copy_n(gradients[0] + first, some, mean);
    for (const float* const gradient : gradients.subspan(1)) {
      for (size_t i = 0; i < some; ++i) mean[i] += gradient[first + i];
    }
    if (gradients.size() > 1) {
      for (size_t i = 0; i < some; ++i) mean[i] *= scale;
    }
    for (float* const target : targets) std::copy_n(mean, some, target + first);
  }
}

}  // namespace gradrail::ps
