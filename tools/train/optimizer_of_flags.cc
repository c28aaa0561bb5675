#include "base/status.h"
#include "fmt/format.h"
#include "tools/train/train_options.h"

namespace gradrail::tools {
namespace {

constexpr float kMlpLearningRate = 0.001f;   // the reference experiment's
constexpr float kCnnLearningRate = 0.02f;    // test accuracy 0.99 after five epochs, updates a step old or not
constexpr float kLinearLearningRate = 0.1f;  // converges within 20 epochs

float model_rate(const std::string& model) {
  if (model == "cnn") return kCnnLearningRate;
  return model == "linear" ? kLinearLearningRate : kMlpLearningRate;
}

absl::StatusOr<OptimizerKind> chosen_optimizer(const TrainFlags& flags) {
  if (flags.optimizer != "auto") return parse_optimizer(flags.optimizer);
  // The tutorial trains the CNN with momentum; plain SGD needs more epochs.
  return flags.model == "cnn" ? OptimizerKind::nesterov : OptimizerKind::sgd;
}

}  // namespace

absl::StatusOr<OptimizerConfig> optimizer_of(const TrainFlags& flags) {
  const absl::StatusOr<OptimizerKind> kind = chosen_optimizer(flags);
  if (!kind.ok()) return absl::InvalidArgumentError(fmt::format("--optimizer: {}", message_of(kind.status())));
  if (flags.momentum_every != 0 && *kind != OptimizerKind::delayed_nesterov) {
    return absl::InvalidArgumentError(
        fmt::format("--momentum_every {}: the optimizer is {}, and only delayed_nesterov has it", flags.momentum_every,
                    optimizer_name(*kind)));
  }
  return OptimizerConfig{.kind = *kind,
                         .learning_rate = flags.learning_rate > 0.0f ? flags.learning_rate : model_rate(flags.model),
                         .momentum = flags.momentum,
                         .weight_decay = flags.weight_decay,
                         .momentum_every = flags.momentum_every};
}

}  // namespace gradrail::tools
