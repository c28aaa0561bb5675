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

}  // namespace

absl::Status set_optimizer(TrainOptions& options) {
  OptimizerConfig& optimizer = options.optimizer;
  if (options.optimizer_name != "auto") {
    GRADRAIL_ASSIGN_OR_RETURN(optimizer.kind, parse_optimizer(options.optimizer_name));
  } else if (options.model == "cnn") {
    // The tutorial trains the CNN with momentum; plain SGD needs more epochs.
    optimizer.kind = OptimizerKind::nesterov;
  }
  if (optimizer.momentum_every != 0 && optimizer.kind != OptimizerKind::delayed_nesterov) {
    return absl::InvalidArgumentError(
        fmt::format("--momentum_every {}: the optimizer is {}, and only delayed_nesterov has it",
                    optimizer.momentum_every, optimizer_name(optimizer.kind)));
  }
  if (optimizer.learning_rate == 0.0f) optimizer.learning_rate = model_rate(options.model);
  return absl::OkStatus();
}

}  // namespace gradrail::tools
