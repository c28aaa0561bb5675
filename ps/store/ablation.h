#pragma once

#include "ps/store/parameter_store.h"

namespace gradrail::ps {

/// Parts of the exchange that a benchmark omits to measure their cost. The parameters are then not usable.
struct Ablation {
  bool no_sum = false;  ///< one gradient represents all gradients of a step
  /// The mean replaces the parameters; with no_sum nothing is computed. Host memory only.
  bool no_optimizer = false;
  bool no_return = false;  ///< workers receive the notice without parameters

  bool any() const { return no_sum || no_optimizer || no_return; }
};

/// Returns a maker of stores without those parts; `make` itself when there are none. The shard's own code is the
/// same with and without ablation.
StoreMaker with_ablation(StoreMaker make, Ablation ablation);

}  // namespace gradrail::ps
