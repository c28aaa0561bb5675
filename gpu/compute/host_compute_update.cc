// Compiled without contraction into fused multiply-adds (CMakeLists.txt): update() gives the bits of ps::apply.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "gpu/compute/host_compute_loops.h"
#include "gpu/kernels/formats.h"

namespace gradrail::gpu::host {
namespace {

// Stays in the first cache from one gradient to the next, and to the update.
constexpr size_t kStripElements = 1024;

/// target[i] = ((s0 + s1) + …) · scale of one strip. value(s, i) is that of a source.
template <typename Value>
void sum_strip(size_t source_count, size_t first, size_t count, float scale, float* target, const Value& value) {
  for (size_t i = 0; i < count; ++i) target[i] = value(0, first + i);
  for (size_t s = 1; s < source_count; ++s) {
    for (size_t i = 0; i < count; ++i) target[i] += value(s, first + i);
  }
  // The scale follows the sum, as in the kernels: a scale for each gradient would round differently.
  for (size_t i = 0; i < count; ++i) target[i] *= scale;
}

template <typename Element>
void sum_elements(const UpdateArguments& a, size_t first, size_t count, float* target) {
  sum_strip(a.gradients.size(), first, count, a.gradient_scale, target,
            [&](size_t s, size_t i) { return kernels::widen(static_cast<const Element*>(a.gradients[s])[i]); });
}

template <int kCodes>
void sum_blocks(const UpdateArguments& a, size_t first, size_t count, float* target) {
  sum_strip(a.gradients.size(), first, count, a.gradient_scale, target, [&](size_t s, size_t i) {
    const auto block = kernels::Blocks<kCodes>::block_at(a.gradients[s], a.count, i / kernels::kBlock);
    return block.value(i % kernels::kBlock);
  });
}

void sum_gradients(const UpdateArguments& a, size_t first, size_t count, float* target) {
  switch (a.format) {
    case GradientFormat::fp32:
      return sum_elements<kernels::F32>(a, first, count, target);
    case GradientFormat::bf16:
      return sum_elements<kernels::Bf16>(a, first, count, target);
    case GradientFormat::int8:
      return sum_blocks<127>(a, first, count, target);
    case GradientFormat::int4:
      return sum_blocks<7>(a, first, count, target);
  }
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
  for (size_t first = 0; first < count; first += kStripElements) {
    const size_t length = std::min(kStripElements, count - first);
    sum_strip(sources.size(), first, length, scale, target + first, [&](size_t s, size_t i) { return sources[s][i]; });
  }
}

void update(const UpdateArguments& a) {
  GRADRAIL_CHECK(!a.gradients.empty() && a.gradients.size() <= kMaxBuffers && a.targets.size() <= kMaxBuffers);
  // 4 KiB on the stack: the mean of a strip needs no allocation.
  float mean[kStripElements];
  for (size_t first = 0; first < a.count; first += kStripElements) {
    const size_t length = std::min(kStripElements, a.count - first);
    sum_gradients(a, first, length, mean);
    float* const parameters = a.parameters + first;
    for (size_t i = 0; i < length; ++i) parameters[i] = fresh(a, first + i, parameters[i], mean[i]);
    // The copies are made while the strip is still in the first cache.
    for (float* target : a.targets) std::copy_n(parameters, length, target + first);
  }
}

}  // namespace gradrail::gpu::host
