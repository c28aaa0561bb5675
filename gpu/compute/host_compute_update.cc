// Compiled without contraction into fused multiply-adds (CMakeLists.txt): update() gives the bits of ps::apply.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "gpu/compute/host_compute_loops.h"

namespace gradrail::gpu::host {
namespace {

// Stays in the first cache from one gradient to the next, and to the update.
constexpr size_t kStripElements = 1024;

float widen(float value) { return value; }
float widen(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

/// target[i] = ((s0 + s1) + …) · scale of one strip; T: float or the bits of a bf16.
template <typename T>
void sum_strip(absl::Span<const void* const> sources, size_t first, size_t count, float scale, float* target) {
  const auto source = [&](size_t s) { return static_cast<const T*>(sources[s]) + first; };
  for (size_t i = 0; i < count; ++i) target[i] = widen(source(0)[i]);
  for (size_t s = 1; s < sources.size(); ++s) {
    const T* added = source(s);
    for (size_t i = 0; i < count; ++i) target[i] += widen(added[i]);
  }
  // After the sum, as in the kernels: a scale for each gradient would round differently.
  for (size_t i = 0; i < count; ++i) target[i] *= scale;
}

/// The order of operations is that of ps/optimizer/kernel_body.h.
float fresh(const UpdateArguments& a, size_t i, float p, float g) {
  if (a.decays) {
    g = g + a.decay * p;
    p = p * a.shrink;
  }
  switch (a.rule) {
    case UpdateRule::sgd:
      return p - a.rate * g;
    case UpdateRule::momentum:
      a.state[0][i] = a.momentum * a.state[0][i] + g;
      return p - a.rate * a.state[0][i];
    case UpdateRule::nesterov:
      a.state[0][i] = a.momentum * a.state[0][i] + g;
      return p - a.rate * (g + a.momentum * a.state[0][i]);
    case UpdateRule::adam: {
      const float m = a.beta1 * a.state[0][i] + a.one_minus_beta1 * g;
      const float v = a.beta2 * a.state[1][i] + a.one_minus_beta2 * (g * g);
      a.state[0][i] = m;
      a.state[1][i] = v;
      return p - a.rate * m / (std::sqrt(v) + a.epsilon);
    }
    case UpdateRule::mean:
      return g;
    case UpdateRule::collect:
      a.state[0][i] = a.state[0][i] + g;
      return p - a.rate * (g * a.momentum_share);
    case UpdateRule::delayed_nesterov:
      a.state[1][i] = a.momentum * a.state[1][i] + (a.state[0][i] + g) * a.momentum_share;
      a.state[0][i] = 0.0f;
      return p - a.rate * (g * a.momentum_share + a.momentum * a.state[1][i]);
  }
  return p;
}

}  // namespace

void sum(absl::Span<const float* const> sources, size_t count, float scale, float* target) {
  GRADRAIL_CHECK(!sources.empty() && sources.size() <= kMaxBuffers);
  const void* addresses[kMaxBuffers];
  std::copy(sources.begin(), sources.end(), addresses);
  for (size_t first = 0; first < count; first += kStripElements) {
    const size_t length = std::min(kStripElements, count - first);
    sum_strip<float>({addresses, sources.size()}, first, length, scale, target + first);
  }
}

void from_bf16(size_t count, const uint16_t* source, float* target) {
  for (size_t i = 0; i < count; ++i) target[i] = widen(source[i]);
}

void update(const UpdateArguments& a) {
  GRADRAIL_CHECK(!a.gradients.empty() && a.gradients.size() <= kMaxBuffers && a.targets.size() <= kMaxBuffers);
  // 4 KiB on the stack: the mean of a strip needs no allocation.
  float mean[kStripElements];
  const auto sum_gradients = a.gradients_are_bf16 ? sum_strip<uint16_t> : sum_strip<float>;
  for (size_t first = 0; first < a.count; first += kStripElements) {
    const size_t length = std::min(kStripElements, a.count - first);
    sum_gradients(a.gradients, first, length, a.gradient_scale, mean);
    float* const parameters = a.parameters + first;
    for (size_t i = 0; i < length; ++i) parameters[i] = fresh(a, first + i, parameters[i], mean[i]);
    // While the strip is still in the first cache.
    for (float* target : a.targets) std::copy_n(parameters, length, target + first);
  }
}

}  // namespace gradrail::gpu::host
