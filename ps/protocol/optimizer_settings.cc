#include "ps/protocol/optimizer_settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail {
namespace {

/// The order is that of OptimizerKind.
constexpr std::array<std::string_view, 8> kOptimizerNames = {"sgd",  "momentum", "nesterov",   "adam",
                                                             "mean", "adamw",    "torch_adam", "delayed_nesterov"};

}  // namespace

absl::StatusOr<OptimizerKind> parse_optimizer(std::string_view name) {
  const auto found = std::find(kOptimizerNames.begin(), kOptimizerNames.end(), name);
  if (found == kOptimizerNames.end()) {
    return absl::InvalidArgumentError(
        fmt::format("optimizer '{}': must be one of {}", name, fmt::join(kOptimizerNames, ", ")));
  }
  // The numbers are part of the checkpoint format: new kinds are appended.
  return static_cast<OptimizerKind>(found - kOptimizerNames.begin());
}

std::string_view optimizer_name(OptimizerKind kind) {
  GRADRAIL_CHECK(static_cast<size_t>(kind) < kOptimizerNames.size());
  return kOptimizerNames[static_cast<size_t>(kind)];
}

absl::Status validate(const OptimizerConfig& optimizer) {
  const auto check = [](std::string_view name, float value, float limit, std::string_view must_be) {
    if (value >= 0.0f && value < limit) return absl::OkStatus();  // false for NaN
    return absl::InvalidArgumentError(fmt::format("{} {}: must be {}", name, value, must_be));
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::string_view kFinite = "a finite number, 0 or more";
  constexpr std::string_view kShare = "0 or more and less than 1";
  GRADRAIL_RETURN_IF_ERROR(check("learning_rate", optimizer.learning_rate, kInfinity, kFinite));
  // A factor of 1 or more would let the state grow without a bound.
  GRADRAIL_RETURN_IF_ERROR(check("momentum", optimizer.momentum, 1.0f, kShare));
  GRADRAIL_RETURN_IF_ERROR(check("beta1", optimizer.beta1, 1.0f, kShare));
  GRADRAIL_RETURN_IF_ERROR(check("beta2", optimizer.beta2, 1.0f, kShare));
  GRADRAIL_RETURN_IF_ERROR(check("epsilon", optimizer.epsilon, kInfinity, kFinite));
  GRADRAIL_RETURN_IF_ERROR(check("weight_decay", optimizer.weight_decay, kInfinity, kFinite));
  if (optimizer.kind == OptimizerKind::mean && optimizer.weight_decay != 0.0f)
    return absl::InvalidArgumentError("weight_decay: the optimizer mean has none");
  if (optimizer.momentum_every != 0 && optimizer.kind != OptimizerKind::delayed_nesterov) {
    return absl::InvalidArgumentError(
        fmt::format("momentum_every {}: the optimizer {} has none; delayed_nesterov has it", optimizer.momentum_every,
                    optimizer_name(optimizer.kind)));
  }
  return absl::OkStatus();
}

namespace ps {

bool are_different_rates(float a, float b) {
  constexpr float kRounding = 1e-6f;
  return std::abs(a - b) > kRounding * std::max(std::abs(a), std::abs(b));
}

std::string different_rates(uint64_t step, WorkerIndex worker, float rate, WorkerIndex other, float other_rate) {
  return fmt::format(
      "step {}: worker {} has the learning rate {}, worker {} has {}: in mode sync all workers must set the same rate "
      "for "
      "a step (a schedule must follow the global step)",
      step, worker, rate, other, other_rate);
}

int state_vectors(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd:
    case OptimizerKind::mean:
      return 0;
    case OptimizerKind::momentum:
    case OptimizerKind::nesterov:
      return 1;
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
    case OptimizerKind::torch_adam:
    case OptimizerKind::delayed_nesterov:
      return 2;
  }
  GRADRAIL_CHECK(false);
}

}  // namespace ps
}  // namespace gradrail
