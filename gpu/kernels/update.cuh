#pragma once

#include "gpu/kernels/common.cuh"

// The kernel makes one pass over memory: sum of the gradients, update of state and parameters, fresh parameters into
// the targets. The arithmetic is that of ps/optimizer/kernel_body.h, operation by operation. An option of nvcc forbids
// its contraction.

namespace gradrail::gpu::kernels {

struct Sgd {
  static constexpr int kState = 0;
  __device__ static float fresh(const UpdateArguments& a, float p, float g, float&, float&) { return p - a.rate * g; }
};

struct Momentum {
  static constexpr int kState = 1;
  __device__ static float fresh(const UpdateArguments& a, float p, float g, float& v, float&) {
    v = a.momentum * v + g;
    return p - a.rate * v;
  }
};

struct Nesterov {
  static constexpr int kState = 1;
  __device__ static float fresh(const UpdateArguments& a, float p, float g, float& v, float&) {
    v = a.momentum * v + g;
    return p - a.rate * (g + a.momentum * v);
  }
};

struct Adam {
  static constexpr int kState = 2;
  __device__ static float fresh(const UpdateArguments& a, float p, float g, float& m, float& v) {
    m = a.beta1 * m + a.one_minus_beta1 * g;
    v = a.beta2 * v + a.one_minus_beta2 * (g * g);
    return p - a.rate * m / (sqrtf(v) + a.epsilon);
  }
};

struct Mean {
  static constexpr int kState = 0;
  __device__ static float fresh(const UpdateArguments&, float, float g, float&, float&) { return g; }
};

struct Collect {
  static constexpr int kState = 1;
  __device__ static float fresh(const UpdateArguments& a, float p, float g, float& d, float&) {
    d = d + g;
    return p - a.rate * (g * a.momentum_share);
  }
};

struct DelayedNesterov {
  static constexpr int kState = 2;
  __device__ static float fresh(const UpdateArguments& a, float p, float g, float& d, float& m) {
    m = a.momentum * m + (d + g) * a.momentum_share;
    d = 0.0f;
    return p - a.rate * (g * a.momentum_share + a.momentum * m);
  }
};

/// The rule behind the weight decay. The branch is the same in all threads.
template <typename Rule>
__device__ float fresh_of(const UpdateArguments& a, float p, float g, float& s0, float& s1) {
  if (a.decays != 0) {
    g = g + a.decay * p;
    p = p * a.shrink;
  }
  return Rule::fresh(a, p, g, s0, s1);
}

/// Gradients of one element behind the other.
template <typename Element>
struct Elements {
  using Read = Quad<Element>;
  __device__ static Read read(const UpdateArguments& a, Bits32 gradient, Count quad) {
    return quads(static_cast<const Element*>(a.gradients[gradient]) + a.run.head)[quad];
  }
  __device__ static float value(const Read& read, int e) { return widen(read.at[e]); }
  __device__ static float single(const UpdateArguments& a, Bits32 gradient, Count i) {
    return widen(static_cast<const Element*>(a.gradients[gradient])[i]);
  }
};

/// Gradients in blocks. The codes begin at any even byte, so that they are read in pairs. They are converted later: a
/// conversion waits for its load, and the loads behind it would wait as well.
template <int kCodes>
struct InBlocks {
  using Format = Blocks<kCodes>;
  struct Read {
    Bits16 pairs[2];
    Bits16 scale;
    bool is_high;  ///< int4: the codes are in the upper halves of their bytes
  };
  /// All four are in one half of a whole block: the head is 0, and a short block has singles.
  __device__ static Read read(const UpdateArguments& a, Bits32 gradient, Count quad) {
    const Count first = a.run.head + 4 * quad;
    const Bits32 at = static_cast<Bits32>(first % kBlock);
    const auto block = Format::block_at(a.gradients[gradient], a.run.count, first / kBlock);
    const bool is_high = Format::kIsHalf && at >= kBlock / 2;
    const auto* const pairs = reinterpret_cast<const Bits16*>(block.codes + (is_high ? at - kBlock / 2 : at));
    return {{pairs[0], pairs[1]}, block.scale, is_high};
  }
  __device__ static float value(const Read& read, int e) {
    const Bits32 byte = static_cast<Bits32>(read.pairs[e / 2]) >> (8 * (e % 2));
    if constexpr (!Format::kIsHalf) return Format::value_of(static_cast<signed char>(byte), read.scale);
    const Bits32 half = read.is_high ? byte >> 4 : byte;
    return Format::value_of(static_cast<int>(half << 28) >> 28, read.scale);
  }
  __device__ static float single(const UpdateArguments& a, Bits32 gradient, Count i) {
    return Blocks<kCodes>::block_at(a.gradients[gradient], a.run.count, i / kBlock).value(i % kBlock);
  }
};

template <typename Rule, typename Gradients>
__device__ void update_single(const UpdateArguments& a, Count i) {
  float sum = Gradients::single(a, 0, i);
  for (Bits32 s = 1; s < a.gradient_count; ++s) sum += Gradients::single(a, s, i);
  float s0 = 0.0f;
  float s1 = 0.0f;
  if constexpr (Rule::kState > 0) s0 = a.state[0][i];
  if constexpr (Rule::kState > 1) s1 = a.state[1][i];
  const float fresh = fresh_of<Rule>(a, a.parameters[i], sum * a.gradient_scale, s0, s1);
  if constexpr (Rule::kState > 0) a.state[0][i] = s0;
  if constexpr (Rule::kState > 1) a.state[1][i] = s1;
  a.parameters[i] = fresh;
  for (Bits32 t = 0; t < a.target_count; ++t) a.targets[t][i] = fresh;
}

// Quads that a thread has in flight. A busy memory needs speed × latency bytes in flight. That is 29 KB in each of 132
// multiprocessors of an H200 (4.8 TB/s, about 0.8 µs). It is 54 KB in each of 148 of a B200 (8 TB/s, 1 µs). Registers
// allow 1,024 threads of sgd with 2 × 2 × 16 bytes each (65 KB). They allow 768 threads of adam with 4 × 2 × 16 bytes
// each (98 KB). One quad would suffice in theory. Two quads cover the time between the stores of one round and the
// loads of the next.
constexpr int kQuadsInFlight = 2;

/// A thread's quads of one round, `blockDim.x` apart, so that each access of a warp is one run of 512 bytes.
template <typename Rule, typename Gradients>
class QuadUpdate {
 public:
  __device__ QuadUpdate(const UpdateArguments& a, Count first) : a_(a), first_(first) {}

  /// Runs the update. All loads precede the first store: they are under way together.
  __device__ void run() {
    load(a_.parameters, parameters_);
    if constexpr (Rule::kState > 0) load(a_.state[0], state0_);
    if constexpr (Rule::kState > 1) load(a_.state[1], state1_);
    sum_gradients();
    step();
    if constexpr (Rule::kState > 0) store(state0_, a_.state[0]);
    if constexpr (Rule::kState > 1) store(state1_, a_.state[1]);
    store(parameters_, a_.parameters);
    for (Bits32 t = 0; t < a_.target_count; ++t) store(parameters_, a_.targets[t]);
  }

 private:
  using Floats = Quad<float>[kQuadsInFlight];

  __device__ Count quad(int u) const { return first_ + static_cast<Count>(u) * blockDim.x; }
  __device__ bool has(int u) const { return quad(u) < a_.run.quads; }

  __device__ void load(const float* from, Floats& to) const {
    GRADRAIL_UNROLL
    for (int u = 0; u < kQuadsInFlight; ++u) {
      if (has(u)) to[u] = quads(from + a_.run.head)[quad(u)];
    }
  }

  __device__ void store(const Floats& from, float* to) const {
    GRADRAIL_UNROLL
    for (int u = 0; u < kQuadsInFlight; ++u) {
      if (has(u)) quads(to + a_.run.head)[quad(u)] = from[u];
    }
  }

  using Read = typename Gradients::Read[kQuadsInFlight];

  __device__ void read(Bits32 gradient, Read& to) const {
    GRADRAIL_UNROLL
    for (int u = 0; u < kQuadsInFlight; ++u) {
      if (has(u)) to[u] = Gradients::read(a_, gradient, quad(u));
    }
  }

  template <bool kFirst = false>
  __device__ void add(const Read& gradient) {
    GRADRAIL_UNROLL
    for (int u = 0; u < kQuadsInFlight; ++u) {
      if (!has(u)) continue;
      GRADRAIL_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float value = Gradients::value(gradient[u], e);
        sum_[u].at[e] = kFirst ? value : sum_[u].at[e] + value;
      }
    }
  }

  /// Adds in the order of the gradients. Two of them are under way together: with one, each round waits for its memory.
  __device__ void sum_gradients() {
    Read one, other;
    read(0, one);
    if (a_.gradient_count > 1) read(1, other);
    add<true>(one);
    if (a_.gradient_count > 1) add(other);
    Bits32 s = 2;
    for (; s + 1 < a_.gradient_count; s += 2) {
      read(s, one);
      read(s + 1, other);
      add(one);
      add(other);
    }
    if (s < a_.gradient_count) {
      read(s, one);
      add(one);
    }
  }

  __device__ void step() {
    GRADRAIL_UNROLL
    for (int u = 0; u < kQuadsInFlight; ++u) {
      if (!has(u)) continue;
      GRADRAIL_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& p = parameters_[u].at[e];
        p = fresh_of<Rule>(a_, p, sum_[u].at[e] * a_.gradient_scale, state0_[u].at[e], state1_[u].at[e]);
      }
    }
  }

  const UpdateArguments& a_;
  const Count first_;
  Floats parameters_, state0_, state1_, sum_;
};

template <typename Rule, typename Gradients>
__device__ void update(const UpdateArguments& a) {
  const Count per_round = static_cast<Count>(blockDim.x) * kQuadsInFlight;
  for (Count first = blockIdx.x * per_round + threadIdx.x; first < a.run.quads; first += gridDim.x * per_round) {
    QuadUpdate<Rule, Gradients>(a, first).run();
  }
  for_singles(a.run, [&](Count i) { update_single<Rule, Gradients>(a, i); });
}

// Three blocks fit a multiprocessor: 768 threads with 80 registers each.
#define GRADRAIL_UPDATE_KERNEL(name, format, Rule, ...)                                           \
  extern "C" __global__ __launch_bounds__(                                                        \
      256, 3) void gradrail_update_##name##_##format(const __grid_constant__ UpdateArguments a) { \
    update<Rule, __VA_ARGS__>(a);                                                                 \
  }
#define GRADRAIL_UPDATE_KERNELS(name, Rule)                \
  GRADRAIL_UPDATE_KERNEL(name, fp32, Rule, Elements<F32>)  \
  GRADRAIL_UPDATE_KERNEL(name, bf16, Rule, Elements<Bf16>) \
  GRADRAIL_UPDATE_KERNEL(name, int8, Rule, InBlocks<127>)  \
  GRADRAIL_UPDATE_KERNEL(name, int4, Rule, InBlocks<7>)

GRADRAIL_UPDATE_KERNELS(sgd, Sgd)
GRADRAIL_UPDATE_KERNELS(momentum, Momentum)
GRADRAIL_UPDATE_KERNELS(nesterov, Nesterov)
GRADRAIL_UPDATE_KERNELS(adam, Adam)
GRADRAIL_UPDATE_KERNELS(mean, Mean)
GRADRAIL_UPDATE_KERNELS(collect, Collect)
GRADRAIL_UPDATE_KERNELS(delayed_nesterov, DelayedNesterov)

#undef GRADRAIL_UPDATE_KERNELS
#undef GRADRAIL_UPDATE_KERNEL

}  // namespace gradrail::gpu::kernels
