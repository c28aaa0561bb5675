// No include guard by intent: each kernel_<isa>.cc includes this once, after its CacheBypass, and compiles it
// with its own flags. Everything is in the unnamed namespace and calls no library function, for the reason given in
// kernel.h.

#include "ps/optimizer/kernel_formats.h"

namespace gradrail::ps {
namespace {

// 4 KiB for each buffer. The mean, the parameters and two state vectors of a strip fit into the smallest L1 in use (32
// KiB). They stay there until each target has its copy. The hardware prefetcher works within a page.
constexpr size_t kStripElements = 1024;

struct Sgd {
  static constexpr int kState = 0;
  // One interface for all rules: unused state is passed as a dummy, which the compiler removes.
  static float fresh(const KernelArguments& a, float p, float g, float&, float&) { return p - a.rate * g; }
};

struct Momentum {
  static constexpr int kState = 1;
  static float fresh(const KernelArguments& a, float p, float g, float& v, float&) {
    v = a.momentum * v + g;
    return p - a.rate * v;
  }
};

struct Nesterov {
  static constexpr int kState = 1;
  static float fresh(const KernelArguments& a, float p, float g, float& v, float&) {
    v = a.momentum * v + g;
    return p - a.rate * (g + a.momentum * v);
  }
};

struct Adam {
  static constexpr int kState = 2;
  static float fresh(const KernelArguments& a, float p, float g, float& m, float& v) {
    m = a.beta1 * m + a.one_minus_beta1 * g;
    v = a.beta2 * v + a.one_minus_beta2 * (g * g);
    return p - a.rate * m / (__builtin_sqrtf(v) + a.epsilon);
  }
};

struct Mean {
  static constexpr int kState = 0;
  static float fresh(const KernelArguments&, float, float g, float&, float&) { return g; }
};

/// The pass itself. The coefficients are copied first: a store through a float pointer could otherwise change them as
/// far as the compiler can prove.
template <typename Rule, bool kHasTarget, bool kDecays>
void update(const KernelArguments& arguments, size_t count, const float* __restrict gradient,
            float* __restrict parameters, float* __restrict state0, float* __restrict state1,
            float* __restrict target) {
  const KernelArguments a = arguments;
  for (size_t i = 0; i < count; ++i) {
    float s0 = 0.0f;
    float s1 = 0.0f;
    if constexpr (Rule::kState > 0) s0 = state0[i];
    if constexpr (Rule::kState > 1) s1 = state1[i];
    float p = parameters[i];
    float g = gradient[i] * a.gradient_scale;
    if constexpr (kDecays) {
      g = g + a.decay * p;
      p = p * a.shrink;
    }
    const float fresh = Rule::fresh(a, p, g, s0, s1);
    if constexpr (Rule::kState > 0) state0[i] = s0;
    if constexpr (Rule::kState > 1) state1[i] = s1;
    parameters[i] = fresh;
    if constexpr (kHasTarget) target[i] = fresh;
  }
}

template <typename Format, typename Element = typename Format::Element>
void sum_two(float* __restrict sum, const Element* __restrict g0, const Element* __restrict g1, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = Format::value(g0[i]) + Format::value(g1[i]);
}

template <typename Format, typename Element = typename Format::Element>
void add_one(float* __restrict sum, const Element* __restrict g, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += Format::value(g[i]);
}

template <typename Format, typename Element = typename Format::Element>
void add_two(float* __restrict sum, const Element* __restrict g0, const Element* __restrict g1, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = (sum[i] + Format::value(g0[i])) + Format::value(g1[i]);
}

template <typename Format, typename Element = typename Format::Element>
void widen(float* __restrict wide, const Element* __restrict g, size_t count) {
  for (size_t i = 0; i < count; ++i) wide[i] = Format::value(g[i]);
}

void copy(float* __restrict target, const float* __restrict source, size_t count) {
  for (size_t i = 0; i < count; ++i) target[i] = source[i];
}

/// Sum of one strip over all gradients, in worker order.
/// Two gradients at once halve the traffic of the sum, and ((s+g0)+g1) keeps the order of one at a time.
template <typename Format>
void sum_elements(const KernelArguments& a, size_t first, size_t count, float* sum) {
  const auto at = [&](size_t i) { return reinterpret_cast<const typename Format::Element*>(a.gradients[i]) + first; };
  if (a.gradient_count == 1) return widen<Format>(sum, at(0), count);
  sum_two<Format>(sum, at(0), at(1), count);
  size_t i = 2;
  for (; i + 1 < a.gradient_count; i += 2) add_two<Format>(sum, at(i), at(i + 1), count);
  if (i < a.gradient_count) add_one<Format>(sum, at(i), count);
}

template <typename Format>
void sum_blocks(const KernelArguments& a, size_t first, size_t count, float* sum) {
  Format::template sum<false>(sum, a.gradients[0], a.count, first, count);
  for (size_t i = 1; i < a.gradient_count; ++i) Format::template sum<true>(sum, a.gradients[i], a.count, first, count);
}

void sum_strip(const KernelArguments& a, size_t first, size_t count, float* sum) {
  switch (a.format) {
    case GradientFormat::fp32:
      return sum_elements<Fp32>(a, first, count, sum);
    case GradientFormat::bf16:
      return sum_elements<Bf16>(a, first, count, sum);
    case GradientFormat::fp16:
      return sum_elements<Fp16>(a, first, count, sum);
    case GradientFormat::int8:
      return sum_blocks<Blocks<127>>(a, first, count, sum);
    case GradientFormat::int4:
      return sum_blocks<Blocks<7>>(a, first, count, sum);
  }
}

/// A lone fp32 gradient is read where it lies.
bool is_read_in_place(const KernelArguments& a) { return a.gradient_count == 1 && a.format == GradientFormat::fp32; }

void sum_all(const KernelArguments& a, float* sum) {
  for (size_t first = 0; first < a.count; first += kStripElements) {
    const size_t left = a.count - first;
    sum_strip(a, first, left < kStripElements ? left : kStripElements, sum + first);
  }
  for (size_t i = 0; i < a.count; ++i) sum[i] *= a.gradient_scale;
}

/// Copies full vectors past the cache. Head and tail go through it: a line that is only partly streamed costs more than
/// one that is not streamed.
void copy_past_cache(float* target, const float* source, size_t count) {
  constexpr size_t kAlignBytes = CacheBypass::kElements * sizeof(float);
  const size_t misaligned_bytes = reinterpret_cast<size_t>(target) % kAlignBytes;
  const size_t to_boundary = misaligned_bytes == 0 ? 0 : (kAlignBytes - misaligned_bytes) / sizeof(float);
  const size_t head = to_boundary < count ? to_boundary : count;
  copy(target, source, head);
  size_t i = head;
  for (; i + CacheBypass::kElements <= count; i += CacheBypass::kElements) CacheBypass::store(target + i, source + i);
  copy(target + i, source + i, count - i);
}

template <typename Rule, bool kDecays>
void apply_strip(const KernelArguments& a, size_t first, size_t count, float* sum) {
  const float* const gradient = is_read_in_place(a) ? a.gradients[0] + first : sum;
  if (gradient == sum) sum_strip(a, first, count, sum);
  float* const parameters = a.parameters + first;
  float* const state0 = Rule::kState > 0 ? a.state[0] + first : nullptr;
  float* const state1 = Rule::kState > 1 ? a.state[1] + first : nullptr;
  // While the fresh value is in a register, one target costs only its store.
  const bool fuse_first_target = a.target_count > 0 && !a.targets_bypass_cache;
  if (fuse_first_target) {
    update<Rule, true, kDecays>(a, count, gradient, parameters, state0, state1, a.targets[0] + first);
  } else {
    update<Rule, false, kDecays>(a, count, gradient, parameters, state0, state1, nullptr);
  }
  for (size_t i = fuse_first_target ? 1 : 0; i < a.target_count; ++i) {
    if (a.targets_bypass_cache) {
      copy_past_cache(a.targets[i] + first, parameters, count);
    } else {
      copy(a.targets[i] + first, parameters, count);
    }
  }
}

template <typename Rule>
void apply_all(const KernelArguments& a) {
  alignas(64) float sum[kStripElements];
  // Strips are for reuse in the cache: with one gradient and one target nothing is read twice.
  const bool one_loop = is_read_in_place(a) && a.target_count <= 1 && !a.targets_bypass_cache;
  const size_t strip = one_loop ? a.count : kStripElements;
  for (size_t first = 0; first < a.count; first += strip) {
    const size_t left = a.count - first;
    const size_t count = left < strip ? left : strip;
    a.decays ? apply_strip<Rule, true>(a, first, count, sum) : apply_strip<Rule, false>(a, first, count, sum);
  }
  // Streaming stores are not ordered with the notice that wakes the reader.
  if (a.targets_bypass_cache) CacheBypass::fence();
}

void pack(GradientFormat format, const float* gradient, float* rest, void* packed, size_t count) {
  switch (format) {
    case GradientFormat::fp32:
      return;
    case GradientFormat::bf16:
      return pack_elements<Bf16>(gradient, rest, packed, count);
    case GradientFormat::fp16:
      return pack_elements<Fp16>(gradient, rest, packed, count);
    case GradientFormat::int8:
      return Blocks<127>::pack(gradient, rest, packed, count);
    case GradientFormat::int4:
      return Blocks<7>::pack(gradient, rest, packed, count);
  }
}

constexpr KernelTable kKernels = {apply_all<Sgd>,  apply_all<Momentum>, apply_all<Nesterov>, apply_all<Adam>,
                                  apply_all<Mean>, sum_all,             pack};

}  // namespace
}  // namespace gradrail::ps
