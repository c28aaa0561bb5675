#include "ps/protocol/optimizer_settings.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace gradrail::ps {
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

}  // namespace gradrail::ps
