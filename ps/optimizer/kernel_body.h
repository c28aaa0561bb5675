// No include guard by intent: each kernel_<isa>.cc includes this once, after its CacheBypass, and compiles it
// with its own flags. Everything is in the unnamed namespace and calls no library function, for the reason given in
// kernel.h.

#include "ps/optimizer/kernel_formats.h"
#include "ps/optimizer/kernel_returns.h"
#include "ps/optimizer/kernel_topk.h"

namespace gradrail::ps {
namespace {

// 4 KiB for each buffer. The mean, the parameters and two state vectors of a strip fit into the smallest L1 in use (32
// KiB). They stay there until each target has its copy. The hardware prefetcher works within a page.
constexpr size_t kStripElements = 1024;
/// A chunk of topk is summed as a whole.
size_t strip_elements(const KernelArguments& a) { return a.format == GradientFormat::topk ? kChunk : kStripElements; }

float root(float value) { return __builtin_sqrtf(value); }
Floats root(Floats values) { return Lanes::root(values); }

struct Sgd {
  static constexpr int kState = 0;
  // All rules have one interface: unused state is passed as a dummy, which the compiler removes.
  template <typename Value>
  static Value fresh(const KernelArguments& a, Value p, Value g, Value&, Value&) {
    return p - a.rate * g;
  }
};

struct Momentum {
  static constexpr int kState = 1;
  template <typename Value>
  static Value fresh(const KernelArguments& a, Value p, Value g, Value& v, Value&) {
    v = a.momentum * v + g;
    return p - a.rate * v;
  }
};

struct Nesterov {
  static constexpr int kState = 1;
  template <typename Value>
  static Value fresh(const KernelArguments& a, Value p, Value g, Value& v, Value&) {
    v = a.momentum * v + g;
    return p - a.rate * (g + a.momentum * v);
  }
};

struct Adam {
  static constexpr int kState = 2;
  template <typename Value>
  static Value fresh(const KernelArguments& a, Value p, Value g, Value& m, Value& v) {
    m = a.beta1 * m + a.one_minus_beta1 * g;
    v = a.beta2 * v + a.one_minus_beta2 * (g * g);
    return p - a.rate * m / (root(v) + a.epsilon);
  }
};

struct Mean {
  static constexpr int kState = 0;
  template <typename Value>
  static Value fresh(const KernelArguments&, Value, Value g, Value&, Value&) {
    return g;
  }
};

/// delayed_nesterov between two updates of the momentum, which is neither read nor written.
struct Collect {
  static constexpr int kState = 1;
  template <typename Value>
  static Value fresh(const KernelArguments& a, Value p, Value g, Value& d, Value&) {
    d = d + g;
    return p - a.rate * (g * a.momentum_share);
  }
};

struct DelayedNesterov {
  static constexpr int kState = 2;
  template <typename Value>
  static Value fresh(const KernelArguments& a, Value p, Value g, Value& d, Value& m) {
    m = a.momentum * m + (d + g) * a.momentum_share;
    d = Value{};
    return p - a.rate * (g * a.momentum_share + a.momentum * m);
  }
};

/// Updates one element, or a vector of them. `g` is the sum of the gradients.
template <typename Rule, bool kDecays, typename Value>
Value fresh_parameter(const KernelArguments& a, Value p, Value g, Value& s0, Value& s1) {
  g = g * a.gradient_scale;
  if constexpr (kDecays) {
    g = g + a.decay * p;
    p = p * a.shrink;
  }
  return Rule::fresh(a, p, g, s0, s1);
}

/// 0 if the value is finite: NaN and infinity less themselves are NaN. A subtraction and an OR of the results are the
/// least that a pass can do to find them.
int odd_bits(float value) { return bits_of(value - value); }
Lanes::Ints odd_bits(Floats values) { return (Lanes::Ints)(values - values); }

/// The pass itself; returns odd_bits() of all fresh values. NaN and infinity in the first state vector reach the
/// parameter. The second one of Adam divides: infinity in it stops the parameter, which stays finite. The coefficients
/// are copied first: a store through a float pointer could otherwise change them as far as the compiler can prove.
template <typename Rule, bool kHasTarget, bool kDecays>
int update(const KernelArguments& arguments, size_t count, const float* __restrict gradient,
           float* __restrict parameters, float* __restrict state0, float* __restrict state1, float* __restrict target) {
  const KernelArguments a = arguments;
  int odd = 0;
  for (size_t i = 0; i < count; ++i) {
    float s0 = 0.0f;
    float s1 = 0.0f;
    if constexpr (Rule::kState > 0) s0 = state0[i];
    if constexpr (Rule::kState > 1) s1 = state1[i];
    const float fresh = fresh_parameter<Rule, kDecays>(a, parameters[i], gradient[i], s0, s1);
    if constexpr (Rule::kState > 0) state0[i] = s0;
    if constexpr (Rule::kState > 1) state1[i] = s1;
    parameters[i] = fresh;
    if constexpr (kHasTarget) target[i] = fresh;
    odd |= odd_bits(fresh);
    if constexpr (Rule::kState > 1) odd |= odd_bits(s1);
  }
  return odd;
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

/// Sum of one strip over all gradients, in worker order. The loop takes two gradients at a time, which halves the
/// traffic of the sum; ((s+g0)+g1) keeps the order of one at a time.
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
  Format::for_each_sum(
      a, first, count,
      [&](const Quad& quad, size_t at) {
        store(sum + at, quad.v0);
        store(sum + at + Lanes::kElements, quad.v1);
        store(sum + at + 2 * Lanes::kElements, quad.v2);
        store(sum + at + 3 * Lanes::kElements, quad.v3);
      },
      [&](const float* slow, size_t at, size_t n) { copy(sum + at, slow, n); });
}

/// The form of update() for int8 and int4: the registers pass a sum directly to the rule.
template <typename Format, typename Rule, bool kHasTarget, bool kDecays>
int update_blocks(const KernelArguments& arguments, size_t first, size_t count, float* parameters, float* state0,
                  float* state1, float* target) {
  const KernelArguments a = arguments;
  Lanes::Ints odd = {};
  int odd_slow = 0;
  const auto one = [&](Floats sum, size_t i) {
    Floats s0 = {}, s1 = {};
    if constexpr (Rule::kState > 0) s0 = load(state0 + i);
    if constexpr (Rule::kState > 1) s1 = load(state1 + i);
    const Floats fresh = fresh_parameter<Rule, kDecays>(a, load(parameters + i), sum, s0, s1);
    if constexpr (Rule::kState > 0) store(state0 + i, s0);
    if constexpr (Rule::kState > 1) store(state1 + i, s1);
    store(parameters + i, fresh);
    if constexpr (kHasTarget) store(target + i, fresh);
    odd |= odd_bits(fresh);
    if constexpr (Rule::kState > 1) odd |= odd_bits(s1);
  };
  Format::for_each_sum(
      a, first, count,
      [&](const Quad& quad, size_t at) {
        one(quad.v0, at);
        one(quad.v1, at + Lanes::kElements);
        one(quad.v2, at + 2 * Lanes::kElements);
        one(quad.v3, at + 3 * Lanes::kElements);
      },
      [&](const float* slow, size_t at, size_t n) {
        odd_slow |= update<Rule, kHasTarget, kDecays>(
            arguments, n, slow, parameters + at, Rule::kState > 0 ? state0 + at : nullptr,
            Rule::kState > 1 ? state1 + at : nullptr, kHasTarget ? target + at : nullptr);
      });
  for (size_t i = 0; i < Lanes::kElements; ++i) odd_slow |= odd[i];
  return odd_slow;
}

void sum_with_shares(const KernelArguments& a, size_t first, size_t count, float* sum);

void sum_strip(const KernelArguments& a, size_t first, size_t count, float* sum) {
  if (a.shares != nullptr) return sum_with_shares(a, first, count, sum);
  switch (a.format) {
    case GradientFormat::fp32:
      return sum_elements<Fp32>(a, first, count, sum);
    case GradientFormat::bf16:
      return sum_elements<Bf16>(a, first, count, sum);
    case GradientFormat::int8:
      return sum_blocks<Blocks<127>>(a, first, count, sum);
    case GradientFormat::int4:
      return sum_blocks<Blocks<7>>(a, first, count, sum);
    case GradientFormat::topk:
      return Topk::sum_chunk(a, first, count, sum);
  }
}

void multiply(float* __restrict values, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] *= factor;
}

void add_share(float* __restrict sum, const float* __restrict gradient, float share, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += share * gradient[i];
}

/// Sums gradients with shares. Each gradient is decoded into its own strip first: shares are rare, and one code serves
/// all formats.
void sum_with_shares(const KernelArguments& arguments, size_t first, size_t count, float* sum) {
  alignas(64) float decoded[kChunk];
  KernelArguments lone = arguments;
  lone.gradient_count = 1;
  lone.shares = nullptr;
  sum_strip(lone, first, count, sum);
  multiply(sum, arguments.shares[0], count);
  for (size_t i = 1; i < arguments.gradient_count; ++i) {
    lone.gradients = arguments.gradients + i;
    sum_strip(lone, first, count, decoded);
    add_share(sum, decoded, arguments.shares[i], count);
  }
}

/// Whether a lone fp32 gradient without a share is read in place.
bool is_read_in_place(const KernelArguments& a) {
  return a.gradient_count == 1 && a.format == GradientFormat::fp32 && a.shares == nullptr;
}

void sum_all(const KernelArguments& a, float* sum) {
  const size_t strip = strip_elements(a);
  for (size_t first = 0; first < a.count; first += strip) {
    const size_t left = a.count - first;
    const size_t count = left < strip ? left : strip;
    sum_strip(a, first, count, sum + first);
    // Now: the strip is in the cache.
    multiply(sum + first, a.gradient_scale, count);
  }
}

/// Copies full vectors past the cache. Head and tail use the cache: a line that is only partly streamed costs more than
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

template <typename Rule, bool kHasTarget, bool kDecays>
int update_strip(const KernelArguments& a, size_t first, size_t count, float* sum, float* parameters, float* state0,
                 float* state1, float* target) {
  if (a.format == GradientFormat::int8 && a.shares == nullptr)
    return update_blocks<Blocks<127>, Rule, kHasTarget, kDecays>(a, first, count, parameters, state0, state1, target);
  if (a.format == GradientFormat::int4 && a.shares == nullptr)
    return update_blocks<Blocks<7>, Rule, kHasTarget, kDecays>(a, first, count, parameters, state0, state1, target);
  const float* const gradient = is_read_in_place(a) ? a.gradients[0] + first : sum;
  if (gradient == sum) sum_strip(a, first, count, sum);
  return update<Rule, kHasTarget, kDecays>(a, count, gradient, parameters, state0, state1, target);
}

template <typename Rule, bool kDecays>
int apply_strip(const KernelArguments& a, size_t first, size_t count, float* sum) {
  float* const parameters = a.parameters + first;
  float* const state0 = Rule::kState > 0 ? a.state[0] + first : nullptr;
  float* const state1 = Rule::kState > 1 ? a.state[1] + first : nullptr;
  // One target costs only its store while the fresh value is in a register.
  const bool fuse_first_target = a.target_count > 0 && !a.targets_bypass_cache;
  const int odd =
      fuse_first_target
          ? update_strip<Rule, true, kDecays>(a, first, count, sum, parameters, state0, state1, a.targets[0] + first)
          : update_strip<Rule, false, kDecays>(a, first, count, sum, parameters, state0, state1, nullptr);
  for (size_t i = fuse_first_target ? 1 : 0; i < a.target_count; ++i) {
    if (a.targets_bypass_cache) {
      copy_past_cache(a.targets[i] + first, parameters, count);
    } else {
      copy(a.targets[i] + first, parameters, count);
    }
  }
  return odd;
}

template <typename Rule>
bool apply_all(const KernelArguments& a) {
  alignas(64) float sum[kChunk];
  // Strips are for reuse in the cache: with one gradient and one target nothing is read twice.
  const bool one_loop = is_read_in_place(a) && a.target_count <= 1 && !a.targets_bypass_cache;
  const size_t strip = one_loop ? a.count : strip_elements(a);
  int odd = 0;
  for (size_t first = 0; first < a.count; first += strip) {
    const size_t left = a.count - first;
    const size_t count = left < strip ? left : strip;
    odd |= a.decays ? apply_strip<Rule, true>(a, first, count, sum) : apply_strip<Rule, false>(a, first, count, sum);
  }
  // Streaming stores are not ordered with the notice that wakes the reader.
  if (a.targets_bypass_cache) CacheBypass::fence();
  return odd == 0;
}

void pack(GradientFormat format, unsigned thousandths, const float* gradient, float* rest, void* packed, size_t count) {
  switch (format) {
    case GradientFormat::fp32:
      return;
    case GradientFormat::bf16:
      return pack_elements<Bf16>(gradient, rest, packed, count);
    case GradientFormat::int8:
      return Blocks<127>::pack(gradient, rest, packed, count);
    case GradientFormat::int4:
      return Blocks<7>::pack(gradient, rest, packed, count);
    case GradientFormat::topk:
      return Topk::pack(gradient, rest, packed, count, thousandths);
  }
}

constexpr KernelTable kKernels = {apply_all<Sgd>,
                                  apply_all<Momentum>,
                                  apply_all<Nesterov>,
                                  apply_all<Adam>,
                                  apply_all<Mean>,
                                  apply_all<Collect>,
                                  apply_all<DelayedNesterov>,
                                  sum_all,
                                  pack,
                                  round_all,
                                  widen_all,
                                  stamp_changes,
                                  pack_delta,
                                  unpack_delta};

}  // namespace
}  // namespace gradrail::ps
