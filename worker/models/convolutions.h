#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace gradrail::worker {

/// The convolutional half of a network: two stages of a 5×5 convolution (SAME) with bias, ReLU and 2×2 max-pooling, by
/// oneDNN in the layouts that it prefers. Only inputs and outputs have the layouts below.
/// Shapes   images: [batch, side, side], features: [batch, side/4, side/4, second], weights: [5, 5, inputs, outputs].
/// Threads  One owner, the same that called limit_product_threads; created under the same limit.
class Convolutions {
 public:
  struct Shape {
    size_t batch = 100;
    size_t side = 28;  ///< a multiple of 4
    size_t first = 32;
    size_t second = 64;
  };
  /// INTERNAL: oneDNN refused, with its reason.
  static absl::StatusOr<Convolutions> create(Shape shape);

  Convolutions(Convolutions&&) noexcept;
  Convolutions& operator=(Convolutions&&) noexcept;
  ~Convolutions();

  struct Weights {
    const float* weights;
    const float* bias;
  };
  struct Gradient {
    float* weights;
    float* bias;
  };
  void forward(const float* images, Weights first, Weights second, float* features);

  /// The way back, in this order and with what forward() was given. The images must still be there, the weights of a
  /// stage until its own way back is done.
  void backward_second(const float* features_gradient, Gradient second);
  void backward_first(Gradient first);

 private:
  struct Impl;
  explicit Convolutions(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradrail::worker
