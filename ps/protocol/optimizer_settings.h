#pragma once

#include <cstdint>
#include <string>

#include "gradrail/optimizer.h"
#include "ps/protocol/mode.h"

namespace gradrail::ps {

inline constexpr OptimizerKind kLastOptimizer = OptimizerKind::delayed_nesterov;

/// A step has the learning rate of OptimizerConfig, and not one of its own.
inline constexpr float kAgreedRate = -1.0f;

/// Whether two learning rates differ by more than the rounding of programs that compute the same schedule.
bool are_different_rates(float a, float b);
/// The cause and the remedy, for the worker that is refused. `other` is in the step.
std::string different_rates(uint64_t step, WorkerIndex worker, float rate, WorkerIndex other, float other_rate);

/// State vectors that an optimizer keeps per parameter: 0 (sgd, mean), 1 (momentum, nesterov), 2 (adam, adamw,
/// torch_adam, delayed_nesterov).
int state_vectors(OptimizerKind kind);

}  // namespace gradrail::ps
