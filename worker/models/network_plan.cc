#include "worker/models/network_plan.h"

#include "fmt/format.h"

namespace gradrail::worker {
namespace {

using gpu::Activation;

LayerPlan dense(const Schema& schema, size_t weights, size_t bias, Activation activation) {
  return {.kind = LayerPlan::Kind::dense,
          .inputs = static_cast<size_t>(schema[weights].shape[0]),
          .outputs = static_cast<size_t>(schema[weights].shape[1]),
          .activation = activation,
          .weights = weights,
          .bias = bias};
}

// Pooling halves the side, so a second convolution has half of the first one's.
LayerPlan convolution(size_t side, size_t channels, size_t outputs, size_t weights) {
  return {.kind = LayerPlan::Kind::convolution,
          .image = {.count = 1, .height = side, .width = side, .channels = channels},
          .outputs = outputs,
          .activation = Activation::relu,
          .weights = weights,
          .bias = weights + 1};
}

}  // namespace

NetworkPlan mlp_plan(const Mlp::Shape& shape) {
  NetworkPlan plan{.name = fmt::format("model mlp with batches of {}", shape.batch),
                   .batch = shape.batch,
                   .pixels = shape.inputs,
                   .classes = shape.classes,
                   .form = BatchLoader::Form::kDense,
                   .schema = Mlp::schema(shape)};
  // W1, W2, b1, b2.
  plan.layers = {dense(plan.schema, 0, 2, Activation::sigmoid), dense(plan.schema, 1, 3, Activation::none)};
  return plan;
}

NetworkPlan cnn_plan(const Cnn::Shape& shape) {
  NetworkPlan plan{.name = fmt::format("model cnn with batches of {}", shape.batch),
                   .batch = shape.batch,
                   .pixels = shape.side * shape.side,
                   .classes = shape.classes,
                   .form = BatchLoader::Form::kCentred,
                   .schema = Cnn::schema(shape)};
  // Weights and biases in turn, from the first layer on.
  plan.layers = {convolution(shape.side, 1, shape.first_channels, 0),
                 convolution(shape.side / 2, shape.first_channels, shape.second_channels, 2),
                 dense(plan.schema, 4, 5, Activation::relu),
                 dense(plan.schema, 6, 7, shape.logits_relu ? Activation::relu : Activation::none),
                 dense(plan.schema, 8, 9, Activation::none)};
  return plan;
}

}  // namespace gradrail::worker
