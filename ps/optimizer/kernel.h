#pragma once

#include <cstddef>

// The interface between optimizer.cc and the kernels. This header is also compiled with AVX-512 and AVX2 enabled, so it
// includes nothing that contains inline functions. The linker keeps one copy of each, possibly one that this processor
// cannot run.

namespace gradrail::ps {

/// PushFormat::Kind, in the same order. Its header has inline functions.
enum class GradientFormat : unsigned char { fp32, bf16, int8, int4, topk };

struct KernelArguments {
  size_t count = 0;
  float* parameters = nullptr;
  /// momentum, nesterov: the velocity. adam, adamw, torch_adam: m, v. delayed_nesterov: d, m. Others: none.
  float* state[2] = {nullptr, nullptr};
  const float* const* gradients = nullptr;
  size_t gradient_count = 0;
  const float* shares = nullptr;                 ///< a factor for each gradient; nullptr: all are 1
  GradientFormat format = GradientFormat::fp32;  ///< format of the gradients, each a whole bucket of `count` elements
  unsigned thousandths = 0;                      ///< value of PushFormat::thousandths
  float* const* targets = nullptr;
  size_t target_count = 0;
  /// Decided by the caller, equal for all strips of a call.
  bool targets_bypass_cache = false;

  float gradient_scale = 1.0f;  ///< 1/N; with shares 1
  float rate = 0.0f;            ///< rate with the bias correction of adam, adamw and torch_adam
  float momentum = 0.0f;
  float momentum_share = 1.0f;  ///< delayed_nesterov: 1/N
  /// 1 − β is passed as well, so that all kernels use one rounding of it.
  float beta1 = 0.0f, one_minus_beta1 = 0.0f;
  float beta2 = 0.0f, one_minus_beta2 = 0.0f;
  float epsilon = 0.0f;
  bool decays = false;  ///< decay applied before the rule: g += decay * p, then p *= shrink
  float decay = 0.0f, shrink = 1.0f;
};

/// Whether all fresh parameters, and the state that belongs to them, are finite.
using ApplyKernel = bool (*)(const KernelArguments&);
/// The sum of the gradients, times gradient_scale.
using SumKernel = void (*)(const KernelArguments&, float* sum);
/// Kernel of pack().
using PackKernel = void (*)(GradientFormat format, unsigned thousandths, const float* gradient, float* rest,
                            void* packed, size_t count);

/// Kernels of round_to_bf16(), widen_bf16(), stamp_changes(), pack_delta() and unpack_delta() (returns.h).
using RoundKernel = void (*)(const float* values, unsigned short* rounded, size_t count);
using WidenKernel = void (*)(const unsigned short* rounded, float* values, size_t count);
using StampKernel = void (*)(const float* values, unsigned short number, unsigned short* held, unsigned short* stamps,
                             size_t count);
using PackDeltaKernel = size_t (*)(const unsigned short* held, const unsigned short* stamps, unsigned short base,
                                   void* packed, size_t count);
using UnpackDeltaKernel = void (*)(const void* packed, unsigned short* held, float* values, size_t count);

/// Kernels of an instruction set. The arithmetic is the same operation by operation, without contraction into FMA, so
/// that all tables give the same bits.
struct KernelTable {
  ApplyKernel sgd, momentum, nesterov, adam, mean, collect, delayed_nesterov;
  SumKernel sum;
  PackKernel pack;
  RoundKernel round;
  WidenKernel widen;
  StampKernel stamp_changes;
  PackDeltaKernel pack_delta;
  UnpackDeltaKernel unpack_delta;
};

extern const KernelTable kGenericKernels;
extern const KernelTable kAvx2Kernels;    ///< x86-64 builds only
extern const KernelTable kAvx512Kernels;  ///< x86-64 builds only

}  // namespace gradrail::ps
