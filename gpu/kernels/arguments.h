#pragma once

// Arguments of each kernel: one structure, passed by value, the same for nvcc and for the host's compiler. Members are
// plain and of fixed width, so that both compilers use the same layout.

namespace gradrail::gpu::kernels {

using Bytes = unsigned char;
using Bits16 = unsigned short;
using Bits32 = unsigned int;
using Count = unsigned long long;

inline constexpr int kMaxBuffers = 64;  ///< gpu::kMaxBuffers

/// Processing order of `count` elements: `head` single elements, `quads` groups of four, single ones to the end. All
/// quads are aligned to their size in every buffer; where the buffers' alignments do not allow that, there are none.
struct Run {
  Count count;
  Count head;
  Count quads;
};

struct UpdateArguments {
  Run run;
  float* parameters;
  float* state[2];
  const void* gradients[kMaxBuffers];
  float* targets[kMaxBuffers];
  Bits32 gradient_count;
  Bits32 target_count;
  float gradient_scale;
  float rate;
  float momentum;
  float momentum_share;  // collect, delayed_nesterov
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float epsilon;
  Bits32 decays;  // 1: before the rule, g += decay * p, then p *= shrink
  float decay, shrink;
};

struct SumArguments {
  Run run;
  const float* sources[kMaxBuffers];
  Bits32 source_count;
  float scale;
  float* target;
};

/// The kernels of int8 and int4 process blocks, and need no quads.
struct PackArguments {
  Run run;
  const float* gradient;
  float* rest;
  void* packed;
};

enum class Function : Bits32 { none, sigmoid, relu };

/// Arguments of the bias and activation. If `by_quads`, columns is a multiple of 4 and both addresses are aligned to
/// 16.
struct BiasActivationArguments {
  Count rows;
  Bits32 columns;
  Bits32 by_quads;
  Function function;
  const float* bias;
  float* x;
};

struct ActivationBackwardArguments {
  Run run;
  Function function;
  const float* y;
  float* gradient;
};

struct SoftmaxArguments {
  Count rows;
  Bits32 columns;
  float share;  ///< 1 / rows
  const Bytes* labels;
  float* logits;
  float* costs;
};

/// Run over images. If `by_quads`, channels is a multiple of 4 and all addresses are aligned to 16.
struct ImageRun {
  Count count;
  Bits32 height;
  Bits32 width;
  Bits32 channels;
  Bits32 by_quads;
};

/// im2col: images → columns; col2im: columns → images.
struct PatchArguments {
  ImageRun shape;
  Bits32 side;  ///< side of the patch; odd
  const float* source;
  float* target;
};

struct PoolArguments {
  ImageRun shape;
  const float* images;
  float* pooled;
};

struct PoolBackwardArguments {
  ImageRun shape;
  const float* images;
  const float* pooled_gradient;
  float* gradient;
};

/// The buffer is cut into `runs` runs of run_bytes. The first run may begin before the buffer; missing bytes count as
/// zeros, and leading zeros do not change the sum.
/// partials[i] = sum of run i, moved to its position in the buffer; their exclusive or is the sum of the whole buffer.
struct Crc32cArguments {
  const Bytes* data;
  Count bytes;
  Count run_bytes;
  Bits32 runs;
  Bits32 powers[32];  ///< [k]: x^(8 · run_bytes · 2^k) modulo the polynomial
  Bits32* partials;
};

}  // namespace gradrail::gpu::kernels
