#pragma once

#include "gpu/compute/compute.h"
#include "ps/protocol/mode.h"

namespace gradrail::ps {

/// The format of a push as the kernels of a GPU name it. Not topk, which they do not have.
constexpr gpu::GradientFormat gpu_format(PushFormat format) {
  static_assert(static_cast<int>(gpu::GradientFormat::int4) == static_cast<int>(PushFormat::int4));
  return static_cast<gpu::GradientFormat>(format.kind);
}

}  // namespace gradrail::ps
