#include "worker/models/mlp.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/data/pixels.h"
#include "worker/models/accuracy.h"
#include "worker/models/elementwise.h"
#include "worker/models/product.h"
#include "worker/models/sparse_product.h"

namespace gradrail::worker {
namespace {

// The order of schema().
enum MlpTensor : size_t { kW1, kW2, kB1, kB2, kMlpTensorCount };

/// All products of a step, in the order of their use.
struct Products {
  Product to_hidden;    // Z1 [batch, hidden] = X · W1 + b1
  Product to_logits;    // Z2 [batch, classes] = H · W2 + b2
  Product to_w2;        // dW2 [hidden, classes] = Hᵀ · dZ2
  Product from_logits;  // dH [batch, hidden] = dZ2 · W2ᵀ
  Product to_w1;        // dW1 [inputs, hidden] = Xᵀ · dZ1
};

absl::StatusOr<Products> prepare(const Mlp::Shape& s) {
  // The order is that of the fields of Products.
  const Product::Shape shapes[] = {
      {.m = s.batch, .k = s.inputs, .n = s.hidden, .bias = true},
      {.m = s.batch, .k = s.hidden, .n = s.classes, .bias = true},
      {.m = s.hidden, .k = s.batch, .n = s.classes, .transposed_a = true},
      {.m = s.batch, .k = s.classes, .n = s.hidden, .transposed_b = true},
      // Reading X across its rows costs oneDNN half of what transposing X first would.
      {.m = s.inputs, .k = s.batch, .n = s.hidden, .transposed_a = true},
  };
  std::vector<Product> made;
  for (const Product::Shape& shape : shapes) {
    GRADRAIL_ASSIGN_OR_RETURN(Product product, Product::create(shape));
    made.push_back(std::move(product));
  }
  return Products{std::move(made[0]), std::move(made[1]), std::move(made[2]), std::move(made[3]), std::move(made[4])};
}

}  // namespace

struct Mlp::Impl {
  Impl(Shape shape, int threads, Products products)
      : shape(shape),
        threads(threads),
        products(std::move(products)),
        sparse(shape.batch, shape.inputs, shape.hidden),
        hidden(shape.batch * shape.hidden),
        hidden_gradient(shape.batch * shape.hidden),
        logits(shape.batch * shape.classes) {}

  /// Fills `hidden` and `logits`.
  void forward(const float* images, Parameters parameters) {
    products.to_hidden.run(images, parameters[kW1].data(), hidden.data(), parameters[kB1].data());
    finish_forward(parameters);
  }

  /// Completes the forward pass from the hidden layer's sums on.
  void finish_forward(Parameters parameters) {
    sigmoid(hidden.data(), hidden.size());
    products.to_logits.run(hidden.data(), parameters[kW2].data(), logits.data(), parameters[kB2].data());
  }

  void check(absl::Span<const uint8_t> labels, Parameters parameters, Gradients gradients) const {
    GRADRAIL_CHECK(labels.size() == shape.batch);
    GRADRAIL_CHECK(parameters.size() == kMlpTensorCount && gradients.size() == kMlpTensorCount);
    GRADRAIL_CHECK(*std::max_element(labels.begin(), labels.end()) < shape.classes);
  }

  float backward(absl::Span<const uint8_t> labels, Parameters parameters, Gradients gradients,
                 const GradientReady& ready, absl::FunctionRef<void(const float* hidden_gradient)> write_w1);

  const Shape shape;
  const int threads;
  Products products;
  SparseProduct sparse;
  std::vector<float> hidden;
  std::vector<float> hidden_gradient;
  std::vector<float> logits;  // the gradient of the logits after the forward pass
  size_t correct = 0;         // images of the last step's batch
};

Mlp::Mlp() = default;
Mlp::~Mlp() = default;

absl::StatusOr<std::unique_ptr<Mlp>> Mlp::create(Shape shape, int threads) {
  GRADRAIL_CHECK(threads > 0);
  limit_product_threads(threads);
  GRADRAIL_ASSIGN_OR_RETURN(Products products, prepare(shape));
  std::unique_ptr<Mlp> mlp(new Mlp);
  mlp->impl_ = std::make_unique<Impl>(shape, threads, std::move(products));
  return mlp;
}

Schema Mlp::schema(Shape shape) {
  const auto inputs = static_cast<int64_t>(shape.inputs);
  const auto hidden = static_cast<int64_t>(shape.hidden);
  const auto classes = static_cast<int64_t>(shape.classes);
  return {{"W1", {inputs, hidden}}, {"W2", {hidden, classes}}, {"b1", {hidden}}, {"b2", {classes}}};
}

void Mlp::initialise(uint64_t seed, Gradients parameters) {
  GRADRAIL_CHECK(parameters.size() == kMlpTensorCount);
  for (const size_t weights : {kW1, kW2}) {
    // A stream per tensor: W2 does not depend on the size of W1.
    Random random(seed, weights);
    for (float& value : parameters[weights]) value = static_cast<float>(random.normal());
  }
  for (const size_t biases : {kB1, kB2}) std::fill(parameters[biases].begin(), parameters[biases].end(), 0.0f);
}

/// All behind forward(); `write_w1` is the last product, the only one that reads the images once more.
float Mlp::Impl::backward(absl::Span<const uint8_t> labels, Parameters parameters, Gradients gradients,
                          const GradientReady& ready, absl::FunctionRef<void(const float* hidden_gradient)> write_w1) {
  const auto done = [&ready](size_t tensor) {
    if (ready) ready(tensor);
  };
  const SoftmaxLoss loss = softmax_cross_entropy(logits.data(), labels.data(), shape.batch, shape.classes);
  correct = loss.correct;
  products.to_w2.run(hidden.data(), logits.data(), gradients[kW2].data());
  // The last reader of W2 precedes done(kW2): after it, fresh parameters may replace W2.
  products.from_logits.run(logits.data(), parameters[kW2].data(), hidden_gradient.data());
  done(kW2);
  sum_rows(logits.data(), shape.batch, shape.classes, gradients[kB2].data());
  done(kB2);
  sigmoid_backward(hidden.data(), hidden_gradient.data(), shape.batch, shape.hidden, gradients[kB1].data());
  // The gradient of b1 is complete already; W1, by far the larger one, is announced first.
  write_w1(hidden_gradient.data());
  done(kW1);
  done(kB1);
  return loss.cost;
}

float Mlp::step(absl::Span<const float> images, absl::Span<const uint8_t> labels, Parameters parameters,
                Gradients gradients, const GradientReady& ready) {
  Impl& impl = *impl_;
  GRADRAIL_CHECK(images.size() == impl.shape.batch * impl.shape.inputs);
  impl.check(labels, parameters, gradients);
  limit_product_threads(impl.threads);
  impl.forward(images.data(), parameters);
  return impl.backward(labels, parameters, gradients, ready, [&](const float* hidden_gradient) {
    impl.products.to_w1.run(images.data(), hidden_gradient, gradients[kW1].data());
  });
}

float Mlp::step(const SparseBatch& batch, Parameters parameters, Gradients gradients, const GradientReady& ready) {
  Impl& impl = *impl_;
  impl.check(batch.labels, parameters, gradients);
  limit_product_threads(impl.threads);
  impl.sparse.forward(batch.by_image, parameters[kW1].data(), parameters[kB1].data(), impl.hidden.data());
  impl.finish_forward(parameters);
  return impl.backward(batch.labels, parameters, gradients, ready, [&](const float* hidden_gradient) {
    impl.sparse.backward(batch.by_pixel, hidden_gradient, gradients[kW1].data());
  });
}

float Mlp::batch_accuracy() const {
  return static_cast<float>(impl_->correct) / static_cast<float>(impl_->shape.batch);
}

float Mlp::accuracy(absl::Span<const uint8_t> images, absl::Span<const uint8_t> labels, Parameters parameters) {
  Impl& impl = *impl_;
  limit_product_threads(impl.threads);
  const AccuracyShape shape{
      .batch = impl.shape.batch, .pixels = impl.shape.inputs, .classes = impl.shape.classes, .scale = scale_pixels};
  return worker::accuracy(shape, images, labels, [&](const float* numbers) {
    impl.forward(numbers, parameters);
    return impl.logits.data();
  });
}

}  // namespace gradrail::worker
