#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/schema.h"
#include "worker/models/mlp.h"

namespace gradrail::worker {

/// The multi-GPU tutorial's network for MNIST. Twice 5×5 convolution, ReLU and 2×2 max-pool, then fully connected
/// layers of 1024 (ReLU), `classes` (ReLU) and `classes` units (linear). The loss is the sparse softmax cross-entropy
/// (mean over the batch). Tensors have the tutorial's names, shapes and layouts: "conv1/weights" [5, 5, 1, 32],
/// "conv1/biases" [32] … "softmax_linear/biases" [10].
/// Threads  One owner; oneDNN uses up to `threads` threads.
class Cnn {
 public:
  struct Shape {
    size_t batch = 100;
    size_t side = 28;  ///< length of a side of the square images; a multiple of 4
    size_t first_channels = 32;
    size_t second_channels = 64;
    size_t hidden = 1024;
    size_t classes = 10;
    /// Whether the layer before the last has the tutorial's ReLU. One of its ten units that is negative for every image
    /// is not trained any more. False leaves the layer linear.
    bool logits_relu = true;
  };
  /// INTERNAL: oneDNN refused, with its reason.
  static absl::StatusOr<std::unique_ptr<Cnn>> create(Shape shape, int threads);
  ~Cnn();

  static Schema schema(Shape shape);

  /// Weights from normal distributions cut at two standard deviations (0.05, 0.05, 0.04, 0.04, 1/192). Biases are 0,
  /// 0.1, 0.1, 0.1, 0; the same seed gives the same values everywhere.
  static void initialise(uint64_t seed, Gradients parameters);

  /// Forward and backward pass. Returns the mean cost of the batch; writes every gradient in full, from the last layer
  /// to the first, calling `ready` after each.
  /// Shapes  images: [batch, side, side], pixels/255 - 0.5; labels: [batch].
  float step(absl::Span<const float> images, absl::Span<const uint8_t> labels, Parameters parameters,
             Gradients gradients, const GradientReady& ready);

  /// Share of the last step's batch with the label as the most likely class, before the update.
  float batch_accuracy() const;

  /// Share of images [n, side, side] (bytes) with the label as the most likely class, in [0, 1].
  float accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels, Parameters parameters);

 private:
  Cnn();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::worker
