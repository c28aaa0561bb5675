#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/models/reference_cnn.h"
#include "tests/worker/models/stable_problem.h"
#include "worker/models/cnn.h"
#include "worker/models/convolutions.h"
#include "worker/models/product.h"

namespace gradrail::worker {
namespace {

using ::testing::ElementsAre;

constexpr Cnn::Shape kTiny{.batch = 3, .side = 8, .first_channels = 3, .second_channels = 5, .hidden = 7, .classes = 4};
// Blocked layouts, yet small.
constexpr Cnn::Shape kBlocks{
    .batch = 5, .side = 12, .first_channels = 32, .second_channels = 16, .hidden = 33, .classes = 10};

/// A batch, parameters and room for gradients. `kSpare` elements around each gradient catch what is written beyond it.
struct Problem {
  static constexpr size_t kSpare = 3;
  static constexpr float kUntouched = -12345.0f;

  explicit Problem(const Cnn::Shape& shape, uint64_t seed)
      : shape(shape), seed(seed), images(shape.batch * shape.side * shape.side), labels(shape.batch) {
    Random random(seed);
    for (float& pixel : images) pixel = static_cast<float>(random.uniform() - 0.5);
    for (uint8_t& label : labels) label = static_cast<uint8_t>(random.below(shape.classes));
    for (const Tensor& tensor : Cnn::schema(shape)) {
      // Keeps the magnitude of values through the layers: they neither vanish nor explode.
      const double outputs = static_cast<double>(tensor.shape.back());
      const double inputs = static_cast<double>(tensor.elements()) / outputs;
      std::vector<float>& to = values.emplace_back(tensor.elements());
      for (float& value : to) value = static_cast<float>(random.normal() * std::sqrt(1.5 / inputs));
      if (tensor.shape.size() == 1) {
        for (float& value : to) value *= 0.2f;
      }
      gradient_room.emplace_back(to.size() + 2 * kSpare, kUntouched);
    }
    for (size_t t = 0; t < values.size(); ++t) {
      parameters.push_back(absl::MakeConstSpan(values[t]));
      gradients.push_back(absl::MakeSpan(gradient_room[t]).subspan(kSpare, values[t].size()));
    }
  }

  CnnTensors doubles() const {
    CnnTensors result;
    for (const std::vector<float>& tensor : values) result.emplace_back(tensor.begin(), tensor.end());
    return result;
  }

  Cnn::Shape shape;
  uint64_t seed;
  std::vector<float> images;
  std::vector<uint8_t> labels;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradient_room;
  std::vector<absl::Span<const float>> parameters;
  std::vector<absl::Span<float>> gradients;
};

std::unique_ptr<Cnn> make(const Cnn::Shape& shape, int threads = 1) {
  absl::StatusOr<std::unique_ptr<Cnn>> cnn = Cnn::create(shape, threads);
  EXPECT_TRUE(cnn.ok()) << cnn.status();
  return *std::move(cnn);
}

float step(Cnn& cnn, const Problem& p, const GradientReady& ready = nullptr) {
  return cnn.step(p.images, p.labels, p.parameters, p.gradients, ready);
}

/// |a - b| / |b| of two tensors as vectors. Single elements may differ by more. A value may
/// be almost zero, or two of a pool almost equal: float and double may send the gradient different ways then.
template <typename A, typename B>
double distance(const A& a, const B& b) {
  double difference = 0.0, length = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    length += b[i] * b[i];
  }
  return length > 0.0 ? std::sqrt(difference / length) : std::sqrt(difference);
}

void expect_matches_reference(const Problem& p, float cost, double tolerance) {
  SCOPED_TRACE(::testing::Message() << "seed " << p.seed);
  CnnTensors expected = zero_cnn_tensors(p.shape);
  const double expected_cost = reference_cnn_step(p.shape, p.images, p.labels, p.doubles(), expected);
  EXPECT_NEAR(cost, expected_cost, 1e-5 * (1.0 + expected_cost));
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_LT(distance(p.gradients[t], expected[t]), tolerance) << Cnn::schema(p.shape)[t].name;
  }
}

/// Seed 414555805 gives a problem that is not stable: two correct networks differ by 0.9 %.
bool is_stable(const Cnn::Shape& shape, uint64_t seed) {
  const Problem p(shape, seed);
  const auto gradients_of = [&](const std::vector<float>& images) {
    CnnTensors gradients = zero_cnn_tensors(shape);
    reference_cnn_step(shape, images, p.labels, p.doubles(), gradients);
    return gradients;
  };
  return rounding_is_harmless(p.images, seed, gradients_of, distance<Doubles, Doubles>);
}

uint64_t stable_seed(const Cnn::Shape& shape) {
  return worker::stable_seed([&](uint64_t seed) { return is_stable(shape, seed); });
}

TEST(CnnStep, AProblemThatRoundingDecidesIsNotStable) { EXPECT_FALSE(is_stable({.batch = 3}, 414555805)); }

TEST(CnnStep, ReferenceAgreesWithCentralDifferences) {
  for (const bool with_relu : {true, false}) {
    Cnn::Shape shape = kTiny;
    shape.logits_relu = with_relu;
    const Problem p(shape, 1);
    CnnTensors parameters = p.doubles();
    CnnTensors gradients = zero_cnn_tensors(shape);
    CnnTensors ignored = zero_cnn_tensors(shape);
    reference_cnn_step(shape, p.images, p.labels, parameters, gradients);
    const double h = 1e-6;
    for (size_t t = 0; t < parameters.size(); ++t) {
      for (size_t i = 0; i < parameters[t].size(); ++i) {
        const double at = parameters[t][i];
        parameters[t][i] = at + h;
        const double above = reference_cnn_step(shape, p.images, p.labels, parameters, ignored);
        parameters[t][i] = at - h;
        const double below = reference_cnn_step(shape, p.images, p.labels, parameters, ignored);
        parameters[t][i] = at;
        ASSERT_NEAR(gradients[t][i], (above - below) / (2 * h), 1e-7) << "tensor " << t << " element " << i;
      }
    }
  }
}

TEST(CnnStep, MatchesReferenceInManyShapes) {
  Cnn::Shape linear = kTiny;
  linear.logits_relu = false;
  const Cnn::Shape shapes[] = {
      kTiny,
      linear,
      kBlocks,
      {.batch = 1, .side = 4, .first_channels = 1, .second_channels = 1, .hidden = 1, .classes = 2},
      {.batch = 3}};
  for (const Cnn::Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.batch << " x " << shape.side << ", " << shape.first_channels << ", "
                                      << shape.second_channels << ", " << shape.hidden << ", " << shape.classes);
    const Problem p(shape, stable_seed(shape));
    expect_matches_reference(p, step(*make(shape), p), 3e-4);
  }
}

TEST(CnnStep, TwoThreadsMatchTheReferenceToo) {
  const Problem p(kBlocks, stable_seed(kBlocks));
  const std::unique_ptr<Cnn> cnn = make(kBlocks, 2);
  expect_matches_reference(p, step(*cnn, p), 3e-4);
}

/// The two stages alone: what goes in between them and the layers behind is not averaged away by those.
TEST(CnnStep, ConvolutionsMatchReference) {
  const Problem p(kBlocks, stable_seed(kBlocks));
  SCOPED_TRACE(::testing::Message() << "seed " << p.seed);
  limit_product_threads(1);
  absl::StatusOr<Convolutions> stages = Convolutions::create({.batch = p.shape.batch,
                                                              .side = p.shape.side,
                                                              .first = p.shape.first_channels,
                                                              .second = p.shape.second_channels});
  ASSERT_TRUE(stages.ok()) << stages.status();
  Volume source(p.shape.batch, p.shape.side, 1);
  std::copy(p.images.begin(), p.images.end(), source.values.begin());
  const CnnTensors doubles = p.doubles();
  const ReferenceStage first(source, doubles[0], doubles[1]);
  const ReferenceStage second(first.pooled, doubles[2], doubles[3]);

  std::vector<float> features(second.pooled.values.size(), Problem::kUntouched);
  stages->forward(p.images.data(), {p.values[0].data(), p.values[1].data()}, {p.values[2].data(), p.values[3].data()},
                  features.data());
  for (size_t i = 0; i < features.size(); ++i) ASSERT_NEAR(features[i], second.pooled.values[i], 1e-5) << i;

  Volume gradient = second.pooled;
  Random random(p.seed + 1);
  for (double& value : gradient.values) value = static_cast<float>(random.normal());
  const std::vector<float> in(gradient.values.begin(), gradient.values.end());
  CnnTensors expected = zero_cnn_tensors(p.shape);
  const Volume between = second.backward(gradient, doubles[2], expected[2], expected[3]);
  first.backward(between, doubles[0], expected[0], expected[1]);
  stages->backward_second(in.data(), {p.gradients[2].data(), p.gradients[3].data()});
  stages->backward_first({p.gradients[0].data(), p.gradients[1].data()});
  for (size_t t = 0; t < 4; ++t) EXPECT_LT(distance(p.gradients[t], expected[t]), 3e-4) << "tensor " << t;
}

TEST(CnnStep, WritesGradientsInFullAndNothingBeyond) {
  const Problem p(kBlocks, 3);
  step(*make(kBlocks), p);
  for (const std::vector<float>& room : p.gradient_room) {
    for (size_t i = 0; i < Problem::kSpare; ++i) {
      EXPECT_EQ(room[i], Problem::kUntouched);
      EXPECT_EQ(room[room.size() - 1 - i], Problem::kUntouched);
    }
    EXPECT_THAT(absl::MakeConstSpan(room).subspan(Problem::kSpare, room.size() - 2 * Problem::kSpare),
                ::testing::Not(::testing::Contains(Problem::kUntouched)));
  }
}

TEST(CnnStep, ReportsEachGradientWhenItIsComplete) {
  const Problem p(kTiny, 4);
  std::vector<size_t> order;
  std::vector<std::vector<float>> when_ready(p.values.size());
  step(*make(kTiny), p, [&](size_t tensor) {
    order.push_back(tensor);
    when_ready[tensor].assign(p.gradients[tensor].begin(), p.gradients[tensor].end());
  });
  EXPECT_THAT(order, ElementsAre(8, 9, 6, 7, 4, 5, 2, 3, 0, 1));
  for (size_t t = 0; t < when_ready.size(); ++t) {
    EXPECT_EQ(absl::MakeConstSpan(when_ready[t]), p.gradients[t]) << "tensor " << t;
  }
}

TEST(CnnStep, NeedsNoParametersOfATensorThatItCalledReady) {
  // Shared memory brings the fresh ones at once, while the rest of the step is still being computed.
  const Problem p(kBlocks, 5);
  Problem q(kBlocks, 5);
  const std::unique_ptr<Cnn> cnn = make(kBlocks);
  step(*cnn, p);
  step(*cnn, q, [&](size_t tensor) { std::fill(q.values[tensor].begin(), q.values[tensor].end(), 1e9f); });
  for (size_t t = 0; t < p.gradients.size(); ++t) EXPECT_EQ(p.gradients[t], q.gradients[t]) << "tensor " << t;
}

TEST(CnnStep, SameInputsGiveTheSameBits) {
  const Problem p(kBlocks, 5), q(kBlocks, 5);
  const std::unique_ptr<Cnn> cnn = make(kBlocks), other = make(kBlocks);
  const float cost = step(*cnn, p);
  step(*cnn, Problem(kBlocks, 6));
  EXPECT_EQ(cost, step(*other, q));
  for (size_t t = 0; t < p.gradients.size(); ++t) EXPECT_EQ(p.gradients[t], q.gradients[t]);
  const std::vector<std::vector<float>> first = p.gradient_room;
  step(*cnn, p);
  EXPECT_EQ(first, p.gradient_room);
}

TEST(CnnStep, DivergedParametersShowInTheCost) {
  // ReLU and pooling of oneDNN ignore NaN.
  for (size_t tensor = 0; tensor < Cnn::schema(kBlocks).size(); ++tensor) {
    Problem p(kBlocks, 9);
    p.values[tensor].back() = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(step(*make(kBlocks), p))) << "tensor " << tensor;
    if (tensor >= 4) continue;  // convolutions
    p.values[tensor].back() = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isnan(step(*make(kBlocks), p))) << "tensor " << tensor;
  }
}

TEST(CnnStep, BeginsAsTheTutorialDoes) {
  Problem p({}, 10);
  std::vector<absl::Span<float>> room;
  for (std::vector<float>& values : p.values) room.push_back(absl::MakeSpan(values));
  Cnn::initialise(7, room);
  const double deviations[] = {0.05, 0.05, 0.04, 0.04, 1.0 / 192.0};
  const float biases[] = {0.0f, 0.1f, 0.1f, 0.1f, 0.0f};
  for (size_t layer = 0; layer < 5; ++layer) {
    EXPECT_THAT(p.values[2 * layer + 1], ::testing::Each(biases[layer]));
    double squares = 0.0, largest = 0.0;
    for (const float value : p.values[2 * layer]) {
      squares += static_cast<double>(value) * value;
      largest = std::max<double>(largest, std::abs(value));
    }
    const double measured = std::sqrt(squares / static_cast<double>(p.values[2 * layer].size()));
    EXPECT_LE(largest, 2.0001 * deviations[layer]);
    EXPECT_NEAR(measured / deviations[layer], 0.88, 0.15) << "a normal distribution cut at two deviations has 0.88";
  }
}

// https://github.com/normanheckscher/mnist-multi-gpu, and TensorFlow's CIFAR-10 tutorial before it.
TEST(CnnStep, TensorsHaveTheNamesOfTheTutorial) {
  const Schema schema = Cnn::schema({});
  std::vector<std::string> names;
  names.reserve(schema.size());
  for (const Tensor& tensor : schema) names.push_back(tensor.name);
  EXPECT_THAT(names, ::testing::ElementsAre("conv1/weights", "conv1/biases", "conv2/weights", "conv2/biases",
                                            "local3/weights", "local3/biases", "local4/weights", "local4/biases",
                                            "softmax_linear/weights", "softmax_linear/biases"));
}

TEST(CnnStep, AccuracyCountsARestSmallerThanTheBatch) {
  const Problem p(kTiny, 11);
  const std::unique_ptr<Cnn> cnn = make(kTiny);
  Random random(12);
  std::vector<uint8_t> images(7 * 64);
  for (uint8_t& pixel : images) pixel = static_cast<uint8_t>(random.below(256));
  // The class of each image, from a call for this image alone.
  std::vector<uint8_t> taken_for;
  for (size_t n = 0; n < 7; ++n) {
    const absl::Span<const uint8_t> image = absl::MakeConstSpan(images).subspan(n * 64, 64);
    for (uint8_t label = 0; label < 4; ++label) {
      if (cnn->accuracy(image, {&label, 1}, p.parameters) == 1.0f) taken_for.push_back(label);
    }
  }
  ASSERT_EQ(taken_for.size(), 7u);
  EXPECT_EQ(cnn->accuracy(images, taken_for, p.parameters), 1.0f);
  taken_for[6] = (taken_for[6] + 1) % 4;
  EXPECT_FLOAT_EQ(cnn->accuracy(images, taken_for, p.parameters), 6.0f / 7.0f);
}

}  // namespace
}  // namespace gradrail::worker
