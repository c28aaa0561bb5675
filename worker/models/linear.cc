#include "worker/models/linear.h"

#include "base/check.h"
#include "fmt/format.h"

namespace gradrail::worker {
namespace {

enum LinearTensor : size_t { kW, kB, kLinearTensorCount };
// The points satisfy y = 2x + 10, the result that the model must find.
constexpr float kTrueW = 2.0f;
constexpr float kTrueB = 10.0f;

}  // namespace

Linear::Linear(size_t batch_size, uint64_t seed, uint64_t task_index)
    : schema_{{"w", {1}}, {"b", {1}}}, seed_(Random(seed, task_index).next()), inputs_(batch_size) {
  GRADRAIL_CHECK(batch_size > 0);
}

void Linear::initialise(uint64_t seed, Gradients parameters) const {
  GRADRAIL_CHECK(parameters.size() == kLinearTensorCount);
  parameters[kW][0] = static_cast<float>(Random(seed).normal());
  parameters[kB][0] = 0.0f;
}

void Linear::seek(uint64_t step) {
  // A batch prepared for another step is discarded.
  ready_ = ready_ && step == step_;
  step_ = step;
}

void Linear::prefetch() {
  if (ready_) return;
  Random random(seed_, step_);  // a step's batch does not depend on those before it
  for (float& x : inputs_) x = static_cast<float>(2.0 * random.uniform() - 1.0);
  ready_ = true;
}

absl::StatusOr<float> Linear::step(Parameters parameters, Gradients gradients, const GradientReady& ready) {
  GRADRAIL_CHECK(parameters.size() == kLinearTensorCount && gradients.size() == kLinearTensorCount);
  prefetch();
  ready_ = false;
  ++step_;
  // Copies: after ready() a fresh value may replace the parameter at any moment.
  const float w = parameters[kW][0];
  const float b = parameters[kB][0];
  double cost = 0.0;
  double w_gradient = 0.0;
  double b_gradient = 0.0;
  for (const float x : inputs_) {
    const double error = w * x + b - (kTrueW * x + kTrueB);
    cost += error * error;
    w_gradient += 2.0 * error * x;
    b_gradient += 2.0 * error;
  }
  const auto count = static_cast<double>(inputs_.size());
  gradients[kB][0] = static_cast<float>(b_gradient / count);
  if (ready) ready(kB);
  gradients[kW][0] = static_cast<float>(w_gradient / count);
  if (ready) ready(kW);
  return static_cast<float>(cost / count);
}

absl::StatusOr<Verdict> Linear::verdict(Parameters parameters) {
  return Verdict{.lines = {fmt::format("w = {:.4f}, b = {:.4f}", parameters[kW][0], parameters[kB][0])},
                 .accuracy = std::nullopt};
}

}  // namespace gradrail::worker
