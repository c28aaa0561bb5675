#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/schema.h"
#include "worker/data/sparse.h"

namespace gradrail::worker {

/// Reports that the gradient of one tensor (index into the schema) is complete and its parameters were read for the
/// last time. Its exchange may start, and fresh parameters may arrive at any moment.
using GradientReady = std::function<void(size_t tensor_index)>;
/// A span for each tensor of the schema.
using Parameters = absl::Span<const absl::Span<const float>>;
using Gradients = absl::Span<const absl::Span<float>>;

/// The reference experiment's network: inputs-hidden-classes, sigmoid, softmax cross-entropy (mean over the batch),
/// 784-100-10 by default. Schema: W1 [inputs, hidden], W2 [hidden, classes], b1, b2. Products by oneDNN, those with a
/// sparse batch by loops of our own.
/// Threads  One owner; oneDNN's products use up to `threads` threads, the sparse ones the owner's alone.
class Mlp {
 public:
  struct Shape {
    size_t batch = 100;
    size_t inputs = 784;
    size_t hidden = 100;
    size_t classes = 10;
  };
  /// INTERNAL: oneDNN refused, with its reason.
  static absl::StatusOr<std::unique_ptr<Mlp>> create(Shape shape, int threads);
  ~Mlp();

  static Schema schema(Shape shape);

  /// Weights from N(0, 1), biases 0; the same seed gives the same values everywhere.
  static void initialise(uint64_t seed, Gradients parameters);

  /// Forward and backward pass. Returns the mean cost of the batch; writes every gradient in full, in backward order
  /// (W2, b2, W1, b1), calling `ready` after each.
  /// Shapes  images: [batch, inputs], labels: [batch].
  float step(absl::Span<const float> images, absl::Span<const uint8_t> labels, Parameters parameters,
             Gradients gradients, const GradientReady& ready);

  /// The same from a sparse batch: equal up to rounding.
  float step(const SparseBatch& batch, Parameters parameters, Gradients gradients, const GradientReady& ready);

  /// Share of the last step's batch with the label as the most likely class, before the update.
  float batch_accuracy() const;

  /// Share of images [n, inputs] (bytes, scaled by 1/255) with the label as the most likely class, in [0, 1].
  float accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels, Parameters parameters);

 private:
  Mlp();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::worker
