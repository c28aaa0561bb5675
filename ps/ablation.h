#pragma once

#include <cstddef>

#include "absl/types/span.h"

namespace gradrail::ps {

/// Parts of the exchange left out, to find what each of them costs. Parameters are of no use then: for measurements.
struct Ablation {
  bool no_sum = false;  ///< one gradient stands for all of a step
  bool no_optimizer =
      false;               ///< the mean takes the parameters' place; with no_sum nothing is computed. Host memory only
  bool no_return = false;  ///< workers get the notice and no parameters

  bool any() const { return no_sum || no_optimizer || no_return; }
};

/// The mean of the gradients into `parameters` and each target, all of `count` elements.
void store_mean(float* parameters, size_t count, absl::Span<const float* const> gradients,
                absl::Span<float* const> targets);

}  // namespace gradrail::ps
