#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "tests/worker/models/reference_mlp.h"
#include "worker/data/dataset.h"

namespace gradrail::worker {

struct ReferenceRun {
  size_t workers = 1;
  size_t steps = 100;
  size_t batch_size = 100;
  float learning_rate = 0.001f;
  uint64_t seed = 1;
};

struct ReferenceResult {
  Tensors<float> parameters;  ///< W1, W2, b1, b2
  std::vector<float> costs;   ///< of each step, the mean over the workers
};

/// The expected result of `workers` workers in sync mode, computed with plain loops in one thread. Each step averages
/// the gradients of all workers' batches (the same seed, stream = task index), and applies the average by SGD.
inline ReferenceResult train_reference(const Split& train, const ReferenceRun& run) {
  const Mlp::Shape shape{.batch = run.batch_size, .inputs = train.pixels};
  ReferenceResult result{.parameters = zero_tensors<float>(shape)};
  std::vector<absl::Span<float>> initial;
  for (std::vector<float>& tensor : result.parameters) initial.push_back(absl::MakeSpan(tensor));
  Mlp::initialise(run.seed, initial);

  std::deque<BatchLoader> loaders;
  for (size_t task = 0; task < run.workers; ++task) loaders.emplace_back(train, run.batch_size, run.seed, task);
  for (size_t step = 0; step < run.steps; ++step) {
    Tensors<float> gradients = zero_tensors<float>(shape);
    const float scale = 1.0f / static_cast<float>(run.workers);
    float cost = 0.0f;
    for (BatchLoader& loader : loaders) {
      const BatchLoader::Batch batch = loader.next();
      cost += scale * reference_step<float>(shape, batch.images, batch.labels, result.parameters, scale, gradients);
    }
    for (size_t t = 0; t < gradients.size(); ++t) {
      for (size_t i = 0; i < gradients[t].size(); ++i) {
        result.parameters[t][i] -= run.learning_rate * gradients[t][i];
      }
    }
    result.costs.push_back(cost);
  }
  return result;
}

}  // namespace gradrail::worker
