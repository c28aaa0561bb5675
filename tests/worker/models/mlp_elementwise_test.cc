#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "worker/models/elementwise.h"

namespace gradrail::worker {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// How far `value` is from `exact`, in units of the last place of a float of that size.
double ulps(float value, double exact) {
  const auto nearest = static_cast<float>(exact);
  const double unit = static_cast<double>(std::nextafter(nearest, std::numeric_limits<float>::infinity())) - nearest;
  return std::abs(static_cast<double>(value) - exact) / unit;
}

std::vector<float> sweep(float first, float last, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = first + (last - first) * static_cast<float>(i) / static_cast<float>(count - 1);
  }
  return values;
}

TEST(MlpElementwise, ExponentialIsWithinTwoUlps) {
  const std::vector<float> arguments = sweep(-87.0f, 87.0f, 1'000'003);
  std::vector<float> values = arguments;
  exponential(values.data(), values.size());
  double worst = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    worst = std::max(worst, ulps(values[i], std::exp(static_cast<double>(arguments[i]))));
  }
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_LE(worst, 2.0);
}

TEST(MlpElementwise, ExponentialStaysFiniteAndKeepsNaN) {
  std::vector<float> values = {0.0f, -0.0f, 1e4f, -1e4f, INFINITY, -INFINITY, kNaN};
  exponential(values.data(), values.size());
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 1.0f);
  EXPECT_TRUE(std::isfinite(values[2]) && std::isfinite(values[4]));
  EXPECT_GT(values[2], 1e37f);
  EXPECT_LT(values[3], 1e-37f);
  EXPECT_EQ(values[3], values[5]);
  EXPECT_TRUE(std::isnan(values[6]));
}

TEST(MlpElementwise, SigmoidIsAccurate) {
  const std::vector<float> arguments = sweep(-80.0f, 80.0f, 400'001);
  std::vector<float> values = arguments;
  sigmoid(values.data(), values.size());
  double worst = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    worst = std::max(worst, ulps(values[i], 1.0 / (1.0 + std::exp(-static_cast<double>(arguments[i])))));
  }
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_LE(worst, 4.0);
}

TEST(MlpElementwise, SigmoidSaturatesWithoutSubnormals) {
  std::vector<float> values = {0.0f, 1e4f, -1e4f, kNaN};
  sigmoid(values.data(), values.size());
  EXPECT_EQ(values[0], 0.5f);
  EXPECT_EQ(values[1], 1.0f);
  EXPECT_TRUE(std::isnormal(values[2]));
  EXPECT_LT(values[2], 1e-37f);
  EXPECT_TRUE(std::isnan(values[3]));
}

TEST(MlpElementwise, EqualLogitsCostTheLogarithmOfTheClasses) {
  for (const float level : {0.0f, 1e4f, -1e4f}) {
    std::vector<float> logits(30, level);
    const uint8_t labels[] = {0, 4, 9};
    EXPECT_NEAR(softmax_cross_entropy(logits.data(), labels, 3, 10).cost, std::log(10.0), 1e-6);
    EXPECT_NEAR(logits[0], (0.1 - 1.0) / 3.0, 1e-7);
    EXPECT_NEAR(logits[1], 0.1 / 3.0, 1e-7);
  }
}

TEST(MlpElementwise, ExtremeLogitsCostWhatTheyShould) {
  std::vector<float> logits = {1e4f, -1e4f, 0.0f, 1e4f, -1e4f, 0.0f};
  const uint8_t labels[] = {0, 1};
  EXPECT_NEAR(softmax_cross_entropy(logits.data(), labels, 2, 3).cost, 1e4, 1e-2);
  const float expected[] = {0.0f, 0.0f, 0.0f, 0.5f, -0.5f, 0.0f};
  for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 1e-7) << i;
}

TEST(MlpElementwise, CorrectRowsHaveTheLabelAsTheFirstLargestLogit) {
  std::vector<float> logits = {1.0f, 3.0f, 2.0f, 5.0f, 5.0f, 0.0f, 5.0f, 5.0f, 0.0f, -1.0f, -3.0f, -2.0f};
  const uint8_t labels[] = {1, 0, 1, 2};
  EXPECT_EQ(softmax_cross_entropy(logits.data(), labels, 4, 3).correct, 2u);
}

TEST(MlpElementwise, CrossEntropyMatchesItsDefinition) {
  const uint64_t seed = 12;
  SCOPED_TRACE(seed);
  Random random(seed);
  const size_t rows = 13, classes = 10;
  std::vector<float> logits(rows * classes);
  for (float& value : logits) value = static_cast<float>(8.0 * random.normal());
  std::vector<uint8_t> labels(rows);
  for (uint8_t& label : labels) label = static_cast<uint8_t>(random.below(classes));
  const std::vector<float> before = logits;
  const float cost = softmax_cross_entropy(logits.data(), labels.data(), rows, classes).cost;
  double expected_cost = 0.0;
  for (size_t row = 0; row < rows; ++row) {
    double sum = 0.0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(before[row * classes + c]));
    expected_cost += std::log(sum) - before[row * classes + labels[row]];
    for (size_t c = 0; c < classes; ++c) {
      const double share = std::exp(static_cast<double>(before[row * classes + c])) / sum - (labels[row] == c ? 1 : 0);
      EXPECT_NEAR(logits[row * classes + c], share / rows, 1e-7);
    }
  }
  EXPECT_NEAR(cost, expected_cost / rows, 1e-5);
}

}  // namespace
}  // namespace gradrail::worker
