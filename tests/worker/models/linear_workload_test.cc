#include <cmath>
#include <deque>
#include <memory>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/linear.h"

namespace gradrail::worker {
namespace {

/// The trainer's defaults for this model.
constexpr float kLearningRate = 0.1f;
constexpr size_t kSteps = 20 * 100;

struct Values {
  float w = 0.0f;
  float b = 0.0f;
};

Values gradient(Workload& workload, const Values& at, float* cost = nullptr) {
  Values result{NAN, NAN};
  const std::vector<absl::Span<const float>> parameters = {{&at.w, 1}, {&at.b, 1}};
  const std::vector<absl::Span<float>> gradients = {{&result.w, 1}, {&result.b, 1}};
  const float mean_cost = workload.step(parameters, gradients, nullptr).value();
  if (cost != nullptr) *cost = mean_cost;
  return result;
}

Values initial(const Workload& workload, uint64_t seed) {
  Values values{NAN, NAN};
  const std::vector<absl::Span<float>> spans = {{&values.w, 1}, {&values.b, 1}};
  workload.initialise(seed, spans);
  return values;
}

TEST(LinearWorkload, GradientIsTheSlopeOfTheCost) {
  const Values at{0.5f, -1.0f};
  const float h = 1e-2f;
  const auto cost_at = [](Values values) {
    Linear linear(100, 3, 1);  // the same seed: the same batch
    float cost = 0.0f;
    gradient(linear, values, &cost);
    return static_cast<double>(cost);
  };
  Linear linear(100, 3, 1);
  const Values slope = gradient(linear, at);
  EXPECT_NEAR(slope.w, (cost_at({at.w + h, at.b}) - cost_at({at.w - h, at.b})) / (2 * h), 2e-2);
  EXPECT_NEAR(slope.b, (cost_at({at.w, at.b + h}) - cost_at({at.w, at.b - h})) / (2 * h), 2e-2);
}

TEST(LinearWorkload, ReportsBiasThenWeight) {
  Linear linear(10, 1, 0);
  const Values at;
  Values out;
  std::vector<size_t> order;
  const absl::Status stepped = linear
                                   .step({{{&at.w, 1}, {&at.b, 1}}}, {{{&out.w, 1}, {&out.b, 1}}},
                                         [&](size_t tensor) { order.push_back(tensor); })
                                   .status();
  EXPECT_TRUE(stepped.ok()) << stepped;
  EXPECT_THAT(order, ::testing::ElementsAre(1, 0));
}

TEST(LinearWorkload, EachTaskHasItsOwnData) {
  Linear one(100, 1, 0), same(100, 1, 0), other(100, 1, 1);
  same.prefetch();
  const Values slope = gradient(one, {});
  EXPECT_EQ(slope.w, gradient(same, {}).w);
  EXPECT_NE(slope.w, gradient(other, {}).w);
  EXPECT_NE(slope.w, gradient(one, {}).w);
}

TEST(LinearWorkload, OneSyncWorkerConverges) {
  for (const size_t batch_size : {size_t{1}, size_t{100}}) {
    Linear linear(batch_size, 1, 0);
    Values values = initial(linear, 1);
    for (size_t i = 0; i < kSteps; ++i) {
      const Values slope = gradient(linear, values);
      values.w -= kLearningRate * slope.w;
      values.b -= kLearningRate * slope.b;
    }
    EXPECT_NEAR(values.w, 2.0f, 0.001f) << "batch " << batch_size;
    EXPECT_NEAR(values.b, 10.0f, 0.001f) << "batch " << batch_size;
  }
}

TEST(LinearWorkload, AsyncWorkersConverge) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (size_t workers = 1; workers <= 4; ++workers) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", workers " << workers);
      Random random(seed);
      std::deque<Linear> tasks;
      for (size_t task = 0; task < workers; ++task) tasks.emplace_back(100, seed, task);
      Values values = initial(tasks[0], seed);
      // The last parameters of each worker: a worker that is not drawn for a while pushes an old gradient.
      std::vector<Values> seen(workers, values);
      for (size_t i = 0; i < kSteps * workers; ++i) {
        const size_t task = random.below(workers);
        const Values slope = gradient(tasks[task], seen[task]);
        values.w -= kLearningRate * slope.w;
        values.b -= kLearningRate * slope.b;
        seen[task] = values;
      }
      EXPECT_NEAR(values.w, 2.0f, 0.01f);
      EXPECT_NEAR(values.b, 10.0f, 0.01f);
    }
  }
}

TEST(LinearWorkload, VerdictHasTheTutorialsWords) {
  Linear linear(100, 1, 0);
  const Values values{2.00004f, 9.99996f};
  EXPECT_THAT(linear.verdict({{{&values.w, 1}, {&values.b, 1}}})->lines,
              ::testing::ElementsAre("w = 2.0000, b = 10.0000"));
  EXPECT_EQ(linear.batches_per_epoch(), 100u);
}

}  // namespace
}  // namespace gradrail::worker
