#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/optimizer_settings.h"

namespace gradrail::ps {

/// Limits of one call of apply().
constexpr size_t kMaxGradients = 16;
constexpr size_t kMaxTargets = 16;

/// An update of a bucket.
/// Shapes   parameters, every gradient, every state vector and every target: [count], fp32 if not stated otherwise.
/// Units    update_index counts the updates of this bucket from 1 (adam's bias correction, N of delayed_nesterov).
struct ApplyArguments {
  size_t count = 0;
  float* parameters = nullptr;
  float* state[2] = {nullptr, nullptr};      ///< momentum: velocity; adam and its kin: m, v
  absl::Span<const float* const> gradients;  ///< 1–16, summed in this order, then divided by their number
  /// Weight of each gradient, more than 0; empty: all are equal. The sum is then that of (weight / sum of all weights)
  /// × g.
  absl::Span<const float> weights;
  PushFormat format = PushFormat::fp32;  ///< format of the gradients: others than fp32 begin at the same pointers
  absl::Span<float* const> targets;      ///< fresh parameters are also stored here; 0–16 (workers' mapped memory)
  uint64_t update_index = 1;
  float rate = kAgreedRate;  ///< replaces OptimizerConfig::learning_rate
  /// Elements that this call and its neighbors read before the first of them is read again (a shard: all its buckets).
  /// Decides whether the targets bypass the cache. 0: this call alone.
  size_t pass_count = 0;
};

/// Reads the gradients, updates state and parameters and stores the fresh parameters into the targets, in one pass over
/// memory. AVX-512, AVX2 or plain code is chosen once at run time. All give the same bits, and so do other cuts into
/// buckets and other numbers of targets. Sum is ((g0+g1)+g2)+…, then × 1/N. When it returns, the targets may be
/// announced to their readers by a release store.
///   sgd         p −= lr·g
///   momentum    v = μ·v + g;  p −= lr·v
///   nesterov    v = μ·v + g;  p −= lr·(g + μ·v)
///   adam        m = β1·m + (1−β1)·g;  v = β2·v + (1−β2)·g²;  p −= lr·√(1−β2^t)/(1−β1^t) · m/(√v + ε)
///   torch_adam  m and v as adam;  p −= lr/(1−β1^t) · m/(√(v/(1−β2^t)) + ε)
///   adamw       p −= lr·decay·p;  then as torch_adam
///   mean        p = g
///   delayed_nesterov  d += g;  each N-th update: m = μ·m + d/N;  d = 0;  p −= lr·(g/N + μ·m);  others: p −= lr·g/N
/// Weight decay is added to the gradient before all others but adamw: g += decay·p.
/// Source   Kingma and Ba 2015 (adam, the paper's efficient form as in TensorFlow; torch_adam as in PyTorch);
///          Loshchilov and Hutter 2019 (adamw, as in PyTorch); Sutskever et al. 2013 (nesterov);
///          Liu et al. 2024, arXiv 2401.09135 (delayed_nesterov, c = 0).
/// Buffers need the alignment of float only, and none may overlap another; gradients may be the same one.
/// More than 16 gradients or targets, no gradient, or update_index 0 break an invariant and stop the process.
/// Returns whether all fresh parameters and their state are finite. NaN or infinity in a gradient is always NaN or
/// infinity in the parameters.
bool apply(const OptimizerConfig& config, const ApplyArguments& arguments);

/// The mean of gradients in any number and format, with the bits that apply() gives it.
/// Shapes   every gradient: a bucket of [mean.size()] elements; weights: as those of apply().
void mean_of(absl::Span<const float* const> gradients, absl::Span<const float> weights, PushFormat format,
             absl::Span<float> mean);

/// Rounds gradient + rest to the format, to nearest even, and keeps what the rounding has left out in `rest`. NaN stays
/// NaN; infinity, and a finite value that rounds to it, leave a rest of 0. int8 and int4: the error of an element is at
/// most half a step of its block. A step is 1/127 or 1/7 of the largest magnitude in the block, rounded up to bf16. A
/// block below 2^-100 stays in the rest. topk: what is not among the largest elements stays in the rest. So do NaN and
/// infinity if a chunk has too many of them.
/// Shapes  gradient, rest: [count]; packed: packed_bytes(count, format). Buffers may not overlap.
/// fp32 has nothing to pack.
void pack(PushFormat format, absl::Span<const float> gradient, float* rest, void* packed);

/// The index of the first value that is NaN or infinite; values.size(): there is none.
size_t first_non_finite(absl::Span<const float> values);

/// "avx512", "avx2" or "generic": the kernels that apply() uses on this host. GRADRAIL_ISA=generic|avx2|avx512 forces a
/// lower one; a name that this host does not support is logged and ignored.
std::string_view apply_isa();

}  // namespace gradrail::ps
