#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "gradrail/export.h"

namespace gradrail {

enum class OptimizerKind : uint8_t { sgd, momentum, nesterov, adam, mean, adamw, torch_adam, delayed_nesterov };

/// Names as on the command line: sgd, momentum, nesterov, adam, mean, adamw, torch_adam, delayed_nesterov.
/// Errors   INVALID_ARGUMENT lists the names.
GRADRAIL_EXPORT absl::StatusOr<OptimizerKind> parse_optimizer(std::string_view name);
GRADRAIL_EXPORT std::string_view optimizer_name(OptimizerKind kind);

/// Settings of the optimizer, which all workers of a run must agree on. The defaults are TensorFlow's.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::sgd;
  float learning_rate = 0.001f;
  float momentum = 0.9f;  ///< momentum, nesterov, delayed_nesterov
  float beta1 = 0.9f;     ///< adam, adamw, torch_adam
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;  ///< adamw: of the parameters themselves; mean: none; others: added to the gradient (L2)
  /// delayed_nesterov: updates of a bucket from one update of the momentum to the next (N). 0: the number of workers at
  /// the start in async and ssp, else 1.
  uint32_t momentum_every = 0;
  bool operator==(const OptimizerConfig&) const = default;
};

/// Errors  INVALID_ARGUMENT names the value that is NaN or outside the range of the optimizers' formulas.
GRADRAIL_EXPORT absl::Status validate(const OptimizerConfig& optimizer);

}  // namespace gradrail
