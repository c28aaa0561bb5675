#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/models/reference_mlp.h"
#include "worker/models/mlp.h"

namespace gradrail::worker {
namespace {

using ::testing::ElementsAre;

constexpr Mlp::Shape kTiny{.batch = 5, .inputs = 7, .hidden = 6, .classes = 3};

/// A batch, parameters and room for gradients. `spare` elements around each gradient catch what is written beyond it.
struct Problem {
  static constexpr size_t kSpare = 3;
  static constexpr float kUntouched = -12345.0f;

  explicit Problem(const Mlp::Shape& shape, uint64_t seed) : shape(shape), values(zero_tensors<float>(shape)) {
    Random random(seed);
    images.resize(shape.batch * shape.inputs);
    for (float& pixel : images) pixel = random.below(4) == 0 ? static_cast<float>(random.uniform()) : 0.0f;
    labels.resize(shape.batch);
    for (uint8_t& label : labels) label = static_cast<uint8_t>(random.below(shape.classes));
    for (std::vector<float>& tensor : values) {
      for (float& value : tensor) value = static_cast<float>(random.normal());
      parameters.push_back(absl::MakeConstSpan(tensor));
      gradient_room.emplace_back(tensor.size() + 2 * kSpare, kUntouched);
    }
    for (size_t t = 0; t < values.size(); ++t) {
      gradients.push_back(absl::MakeSpan(gradient_room[t]).subspan(kSpare, values[t].size()));
    }
  }

  Tensors<double> doubles() const {
    Tensors<double> result;
    for (const std::vector<float>& tensor : values) result.emplace_back(tensor.begin(), tensor.end());
    return result;
  }

  Mlp::Shape shape;
  std::vector<float> images;
  std::vector<uint8_t> labels;
  Tensors<float> values;
  Tensors<float> gradient_room;
  std::vector<absl::Span<const float>> parameters;
  std::vector<absl::Span<float>> gradients;
};

std::unique_ptr<Mlp> make(const Mlp::Shape& shape, int threads = 1) {
  absl::StatusOr<std::unique_ptr<Mlp>> mlp = Mlp::create(shape, threads);
  EXPECT_TRUE(mlp.ok()) << mlp.status();
  return *std::move(mlp);
}

float step(Mlp& mlp, const Problem& p, const GradientReady& ready = nullptr) {
  return mlp.step(p.images, p.labels, p.parameters, p.gradients, ready);
}

void expect_matches_reference(const Problem& p, float cost) {
  Tensors<double> expected = zero_tensors<double>(p.shape);
  const double expected_cost = reference_step<double>(p.shape, p.images, p.labels, p.doubles(), 1.0, expected);
  EXPECT_NEAR(cost, expected_cost, 1e-5 * (1.0 + expected_cost));
  for (size_t t = 0; t < expected.size(); ++t) {
    for (size_t i = 0; i < expected[t].size(); ++i) {
      ASSERT_NEAR(p.gradients[t][i], expected[t][i], 2e-6) << "tensor " << t << " element " << i;
    }
  }
}

size_t count_threads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

TEST(MlpStep, ReferenceAgreesWithCentralDifferences) {
  const Problem p(kTiny, 1);
  Tensors<double> parameters = p.doubles();
  Tensors<double> gradients = zero_tensors<double>(kTiny);
  Tensors<double> ignored = zero_tensors<double>(kTiny);
  reference_step<double>(kTiny, p.images, p.labels, parameters, 1.0, gradients);
  const double h = 1e-5;
  for (size_t t = 0; t < parameters.size(); ++t) {
    for (size_t i = 0; i < parameters[t].size(); ++i) {
      const double at = parameters[t][i];
      parameters[t][i] = at + h;
      const double above = reference_step<double>(kTiny, p.images, p.labels, parameters, 1.0, ignored);
      parameters[t][i] = at - h;
      const double below = reference_step<double>(kTiny, p.images, p.labels, parameters, 1.0, ignored);
      parameters[t][i] = at;
      ASSERT_NEAR(gradients[t][i], (above - below) / (2 * h), 1e-8) << "tensor " << t << " element " << i;
    }
  }
}

TEST(MlpStep, MatchesReferenceInManyShapes) {
  const Mlp::Shape shapes[] = {kTiny,
                               {},
                               {.batch = 1, .inputs = 1, .hidden = 1, .classes = 2},
                               {.batch = 1, .inputs = 784},
                               {.batch = 33, .inputs = 50, .hidden = 17, .classes = 10},
                               {.batch = 128, .inputs = 784, .hidden = 64, .classes = 10}};
  for (const Mlp::Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.batch << " x " << shape.inputs << "-" << shape.hidden << "-"
                                      << shape.classes);
    const Problem p(shape, 2);
    const std::unique_ptr<Mlp> mlp = make(shape);
    expect_matches_reference(p, step(*mlp, p));
  }
}

TEST(MlpStep, WritesGradientsInFullAndNothingBeyond) {
  const Problem p({}, 3);
  const std::unique_ptr<Mlp> mlp = make({});
  step(*mlp, p);
  for (const std::vector<float>& room : p.gradient_room) {
    for (size_t i = 0; i < Problem::kSpare; ++i) {
      EXPECT_EQ(room[i], Problem::kUntouched);
      EXPECT_EQ(room[room.size() - 1 - i], Problem::kUntouched);
    }
    EXPECT_THAT(absl::MakeConstSpan(room).subspan(Problem::kSpare, room.size() - 2 * Problem::kSpare),
                ::testing::Not(::testing::Contains(Problem::kUntouched)));
  }
}

TEST(MlpStep, ReportsEachGradientWhenItIsComplete) {
  const Problem p(kTiny, 4);
  const std::unique_ptr<Mlp> mlp = make(kTiny);
  std::vector<size_t> order;
  Tensors<float> when_ready(4);
  step(*mlp, p, [&](size_t tensor) {
    order.push_back(tensor);
    when_ready[tensor].assign(p.gradients[tensor].begin(), p.gradients[tensor].end());
  });
  EXPECT_THAT(order, ElementsAre(1, 3, 0, 2));
  for (size_t t = 0; t < 4; ++t) EXPECT_EQ(absl::MakeConstSpan(when_ready[t]), p.gradients[t]) << "tensor " << t;
}

TEST(MlpStep, NeedsNoParametersOfATensorThatItCalledReady) {
  // Shared memory brings the fresh ones at once, while the rest of the step is still being computed.
  const Problem p({}, 5);
  Problem q({}, 5);
  const std::unique_ptr<Mlp> mlp = make({});
  step(*mlp, p);
  step(*mlp, q, [&](size_t tensor) { std::fill(q.values[tensor].begin(), q.values[tensor].end(), 1e9f); });
  for (size_t t = 0; t < p.gradients.size(); ++t) EXPECT_EQ(p.gradients[t], q.gradients[t]) << "tensor " << t;
}

TEST(MlpStep, SameInputsGiveTheSameBits) {
  const Problem p({}, 5), q({}, 5);
  const std::unique_ptr<Mlp> mlp = make({}), other = make({});
  const float cost = step(*mlp, p);
  step(*mlp, Problem({}, 6));
  EXPECT_EQ(cost, step(*other, q));
  for (size_t t = 0; t < 4; ++t) EXPECT_EQ(p.gradients[t], q.gradients[t]);
  const Tensors<float> first = p.gradient_room;
  step(*mlp, p);
  EXPECT_EQ(first, p.gradient_room);
}

TEST(MlpStep, DivergedParametersShowInTheCost) {
  Problem p({}, 9);
  p.values[0].assign(p.values[0].size(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(step(*make({}), p)));
}

TEST(MlpStep, AccuracyCountsARestSmallerThanTheBatch) {
  // One input decides: dark is class 0, bright class 1.
  const Mlp::Shape shape{.batch = 4, .inputs = 1, .hidden = 1, .classes = 2};
  const float w1[] = {10.0f}, w2[] = {-10.0f, 10.0f}, b1[] = {-5.0f}, b2[] = {5.0f, -5.0f};
  const std::vector<absl::Span<const float>> parameters = {w1, w2, b1, b2};
  const std::vector<uint8_t> images = {0, 255, 0, 255, 255, 0};
  const std::unique_ptr<Mlp> mlp = make(shape);
  EXPECT_FLOAT_EQ(mlp->accuracy(images, std::vector<uint8_t>{0, 1, 0, 1, 1, 0}, parameters), 1.0f);
  EXPECT_FLOAT_EQ(mlp->accuracy(images, std::vector<uint8_t>{0, 1, 0, 1, 1, 1}, parameters), 5.0f / 6.0f);
  EXPECT_FLOAT_EQ(mlp->accuracy(images, std::vector<uint8_t>{1, 0, 1, 0, 0, 1}, parameters), 0.0f);
}

TEST(MlpStep, InitialValuesAreStandardNormalAndReproducible) {
  Problem p({}, 10), q({}, 11), r({}, 12);
  const auto initialise = [](Problem& problem, uint64_t seed) {
    std::vector<absl::Span<float>> spans;
    for (std::vector<float>& tensor : problem.values) spans.push_back(absl::MakeSpan(tensor));
    Mlp::initialise(seed, spans);
  };
  initialise(p, 1);
  initialise(q, 1);
  initialise(r, 2);
  EXPECT_EQ(p.values, q.values);
  EXPECT_NE(p.values[0], r.values[0]);
  EXPECT_NE(p.values[0][0], p.values[1][0]);
  double sum = 0.0, squares = 0.0;
  for (const float value : p.values[0]) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(p.values[0].size());
  EXPECT_NEAR(sum / count, 0.0, 5.0 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1.0, 0.03);
  EXPECT_THAT(p.values[2], ::testing::Each(0.0f));
  EXPECT_THAT(p.values[3], ::testing::Each(0.0f));
}

// Each test runs in its own thread: OpenMP keeps its limit and its helper threads per thread. State of earlier tests
// has no effect then.
TEST(MlpThreads, OneThreadStartsNone) {
  std::thread([] {
    const Problem p({}, 13);
    const size_t before = count_threads();
    const std::unique_ptr<Mlp> mlp = make({}, 1);
    step(*mlp, p);
    EXPECT_LE(count_threads(), before);
  }).join();
}

TEST(MlpThreads, LimitMovesWithTheOwner) {
  const Problem p({}, 13);
  const std::unique_ptr<Mlp> mlp = make({}, 1);
  std::thread([&] {
    const size_t before = count_threads();
    step(*mlp, p);
    EXPECT_LE(count_threads(), before);
  }).join();
}

TEST(MlpThreads, ThreeThreadsGiveTheSameGradients) {
  std::thread([] {
    const Problem p({}, 14);
    const std::unique_ptr<Mlp> mlp = make({}, 3);
    expect_matches_reference(p, step(*mlp, p));
    EXPECT_GE(count_threads(), 4u);  // the test's, the owner, its two helpers
  }).join();
}

}  // namespace
}  // namespace gradrail::worker
