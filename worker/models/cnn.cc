#include "worker/models/cnn.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/data/pixels.h"
#include "worker/models/accuracy.h"
#include "worker/models/convolutions.h"
#include "worker/models/elementwise.h"
#include "worker/models/product.h"

namespace gradrail::worker {
namespace {

// The order of schema(). Weights have even indices and their bias follows: initialise() and backward() rely on it.
enum CnnTensor : size_t {
  kConv1,
  kConv1Bias,
  kConv2,
  kConv2Bias,
  kLocal3,
  kLocal3Bias,
  kLocal4,
  kLocal4Bias,
  kLinear,
  kLinearBias,
  kTensorCount
};

/// Initial values of a layer.
struct Beginning {
  double deviation;  // deviation of the weights
  float bias;
};
constexpr Beginning kBeginnings[] = {{0.05, 0.0f}, {0.05, 0.1f}, {0.04, 0.1f}, {0.04, 0.1f}, {1.0 / 192.0, 0.0f}};

/// A fully connected layer's three products.
struct Layer {
  Product forward;     // Y [batch, outputs] = X [batch, inputs] · W + b
  Product to_weights;  // dW = Xᵀ · dY
  Product to_inputs;   // dX = dY · Wᵀ
};

absl::StatusOr<Layer> make_layer(size_t batch, size_t inputs, size_t outputs) {
  absl::StatusOr<Product> forward = Product::create({.m = batch, .k = inputs, .n = outputs, .bias = true});
  absl::StatusOr<Product> to_weights = Product::create({.m = inputs, .k = batch, .n = outputs, .transposed_a = true});
  absl::StatusOr<Product> to_inputs = Product::create({.m = batch, .k = outputs, .n = inputs, .transposed_b = true});
  for (const auto* product : {&forward, &to_weights, &to_inputs}) {
    if (!product->ok()) return product->status();
  }
  return Layer{*std::move(forward), *std::move(to_weights), *std::move(to_inputs)};
}

// Two poolings halve each side twice.
size_t features_of(const Cnn::Shape& shape) { return shape.side / 4 * (shape.side / 4) * shape.second_channels; }

}  // namespace

struct Cnn::Impl {
  Impl(const Shape& shape, int threads, Convolutions convolutions, Layer local3, Layer local4, Layer linear)
      : shape(shape),
        threads(threads),
        convolutions(std::move(convolutions)),
        local3(std::move(local3)),
        local4(std::move(local4)),
        linear(std::move(linear)),
        features(shape.batch * features_of(shape)),
        features_gradient(features.size()),
        hidden(shape.batch * shape.hidden),
        hidden_gradient(hidden.size()),
        units(shape.batch * shape.classes),
        units_gradient(units.size()),
        logits(shape.batch * shape.classes) {}

  /// Fills everything up to `logits`.
  void forward(const float* images, Parameters parameters);
  void backward(Parameters parameters, Gradients gradients, const GradientReady& ready);

  const Shape shape;
  const int threads;
  Convolutions convolutions;
  Layer local3, local4, linear;
  std::vector<float> features, features_gradient;
  std::vector<float> hidden, hidden_gradient;
  std::vector<float> units, units_gradient;  // units of the layer before the last
  std::vector<float> logits;                 // the gradient of the logits after the forward pass
  size_t correct = 0;                        // images of the last step's batch
};

Cnn::Cnn() = default;
Cnn::~Cnn() = default;

absl::StatusOr<std::unique_ptr<Cnn>> Cnn::create(Shape shape, int threads) {
  GRADRAIL_CHECK(threads > 0);
  limit_product_threads(threads);
  GRADRAIL_ASSIGN_OR_RETURN(
      Convolutions convolutions,
      Convolutions::create(
          {.batch = shape.batch, .side = shape.side, .first = shape.first_channels, .second = shape.second_channels}));
  absl::StatusOr<Layer> local3 = make_layer(shape.batch, features_of(shape), shape.hidden);
  absl::StatusOr<Layer> local4 = make_layer(shape.batch, shape.hidden, shape.classes);
  absl::StatusOr<Layer> linear = make_layer(shape.batch, shape.classes, shape.classes);
  // All three are checked before any is moved into the network: an error leaves no half-made one.
  for (const auto* layer : {&local3, &local4, &linear}) {
    if (!layer->ok()) return layer->status();
  }
  std::unique_ptr<Cnn> cnn(new Cnn);
  cnn->impl_ = std::make_unique<Impl>(shape, threads, std::move(convolutions), *std::move(local3), *std::move(local4),
                                      *std::move(linear));
  return cnn;
}

Schema Cnn::schema(Shape shape) {
  const auto first = static_cast<int64_t>(shape.first_channels);
  const auto second = static_cast<int64_t>(shape.second_channels);
  const auto features = static_cast<int64_t>(features_of(shape));
  const auto hidden = static_cast<int64_t>(shape.hidden);
  const auto classes = static_cast<int64_t>(shape.classes);
  return {{"conv1/weights", {5, 5, 1, first}},
          {"conv1/biases", {first}},
          {"conv2/weights", {5, 5, first, second}},
          {"conv2/biases", {second}},
          {"local3/weights", {features, hidden}},
          {"local3/biases", {hidden}},
          {"local4/weights", {hidden, classes}},
          {"local4/biases", {classes}},
          {"softmax_linear/weights", {classes, classes}},
          {"softmax_linear/biases", {classes}}};
}

void Cnn::initialise(uint64_t seed, Gradients parameters) {
  GRADRAIL_CHECK(parameters.size() == kTensorCount);
  for (size_t layer = 0; layer < std::size(kBeginnings); ++layer) {
    const auto [deviation, bias] = kBeginnings[layer];
    // A stream per layer: the values of one layer do not depend on the sizes of those before it.
    Random random(seed, layer);
    for (float& weight : parameters[2 * layer]) {
      double value = random.normal();
      while (std::abs(value) > 2.0) value = random.normal();  // drawn again, as truncated_normal does
      weight = static_cast<float>(value * deviation);
    }
    std::fill(parameters[2 * layer + 1].begin(), parameters[2 * layer + 1].end(), bias);
  }
}

void Cnn::Impl::forward(const float* images, Parameters parameters) {
  const auto at = [&](CnnTensor tensor) { return parameters[tensor].data(); };
  convolutions.forward(images, {at(kConv1), at(kConv1Bias)}, {at(kConv2), at(kConv2Bias)}, features.data());
  local3.forward.run(features.data(), at(kLocal3), hidden.data(), at(kLocal3Bias));
  relu(hidden.data(), hidden.size());
  local4.forward.run(hidden.data(), at(kLocal4), units.data(), at(kLocal4Bias));
  if (shape.logits_relu) relu(units.data(), units.size());
  linear.forward.run(units.data(), at(kLinear), logits.data(), at(kLinearBias));
}

/// Computes all gradients from the gradient of the logits, which `logits` contains.
void Cnn::Impl::backward(Parameters parameters, Gradients gradients, const GradientReady& ready) {
  const auto at = [&](CnnTensor tensor) { return gradients[tensor].data(); };
  const auto done = [&](CnnTensor weights) {
    if (!ready) return;
    ready(weights);
    ready(weights + 1);
  };
  // Each layer calls done() after to_inputs, the last reader of the weights: fresh ones may then replace them.
  linear.to_weights.run(units.data(), logits.data(), at(kLinear));
  sum_rows(logits.data(), shape.batch, shape.classes, at(kLinearBias));
  linear.to_inputs.run(logits.data(), parameters[kLinear].data(), units_gradient.data());
  done(kLinear);
  if (shape.logits_relu) relu_backward(units.data(), units_gradient.data(), units.size());

  local4.to_weights.run(hidden.data(), units_gradient.data(), at(kLocal4));
  sum_rows(units_gradient.data(), shape.batch, shape.classes, at(kLocal4Bias));
  local4.to_inputs.run(units_gradient.data(), parameters[kLocal4].data(), hidden_gradient.data());
  done(kLocal4);
  // This reads gradients and activations only, so it may follow done().
  relu_backward(hidden.data(), hidden_gradient.data(), hidden.size());

  local3.to_weights.run(features.data(), hidden_gradient.data(), at(kLocal3));
  sum_rows(hidden_gradient.data(), shape.batch, shape.hidden, at(kLocal3Bias));
  local3.to_inputs.run(hidden_gradient.data(), parameters[kLocal3].data(), features_gradient.data());
  done(kLocal3);

  // It includes the gradient of the first stage, which reads the weights of the second stage for the last time.
  convolutions.backward_second(features_gradient.data(), {at(kConv2), at(kConv2Bias)});
  done(kConv2);
  convolutions.backward_first({at(kConv1), at(kConv1Bias)});
  done(kConv1);
}

float Cnn::step(absl::Span<const float> images, absl::Span<const uint8_t> labels, Parameters parameters,
                Gradients gradients, const GradientReady& ready) {
  Impl& impl = *impl_;
  const Shape& shape = impl.shape;
  GRADRAIL_CHECK(images.size() == shape.batch * shape.side * shape.side && labels.size() == shape.batch);
  GRADRAIL_CHECK(parameters.size() == kTensorCount && gradients.size() == kTensorCount);
  // softmax_cross_entropy() uses each label as an index.
  GRADRAIL_CHECK(*std::max_element(labels.begin(), labels.end()) < shape.classes);
  // OpenMP counts threads per calling thread, and another model in this thread may have set another count.
  limit_product_threads(impl.threads);
  impl.forward(images.data(), parameters);
  const SoftmaxLoss loss = softmax_cross_entropy(impl.logits.data(), labels.data(), shape.batch, shape.classes);
  impl.correct = loss.correct;
  impl.backward(parameters, gradients, ready);
  return loss.cost;
}

float Cnn::batch_accuracy() const {
  return static_cast<float>(impl_->correct) / static_cast<float>(impl_->shape.batch);
}

float Cnn::accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels, Parameters parameters) {
  Impl& impl = *impl_;
  limit_product_threads(impl.threads);
  const AccuracyShape shape{.batch = impl.shape.batch,
                            .pixels = impl.shape.side * impl.shape.side,
                            .classes = impl.shape.classes,
                            .scale = centre_pixels};
  return worker::accuracy(shape, images, labels, [&](const float* numbers) {
    impl.forward(numbers, parameters);
    return impl.logits.data();
  });
}

}  // namespace gradrail::worker
