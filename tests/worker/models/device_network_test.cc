#include "worker/models/device_network.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gpu/reduce/tower_sum.h"
#include "gtest/gtest.h"
#include "tests/gpu/fact.h"
#include "tests/gpu/simulation.h"
#include "tests/worker/models/faulty_compute.h"
#include "tests/worker/models/stable_problem.h"

namespace gradrail::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kPoison = -12345.0f;

/// $GRADRAIL_TEST_COMPUTE=gpu: the first GPU; else the host.
absl::StatusOr<std::unique_ptr<gpu::Compute>> compute() {
  const char* which = std::getenv("GRADRAIL_TEST_COMPUTE");
  if (which == nullptr || std::string(which) != "gpu") return gpu::host_compute();
  return gpu::open_device(0);
}

class DeviceNetworks : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<std::unique_ptr<gpu::Compute>> made = compute();
    const absl::Status& opened = made.status();
    // A test of the simulated driver must not pass on the host.
    if (made.ok() && gpu::Simulation::is_here()) {
      ASSERT_TRUE((*made)->is_device());
    }
    if (!opened.ok() && gpu::Simulation::tolerates(opened)) GTEST_SKIP() << opened;
    ASSERT_TRUE(opened.ok()) << opened;
  }
};

/// A batch, parameters that keep the magnitude of values through the layers, and poisoned memory for gradients.
struct Problem {
  Problem(const NetworkPlan& plan, uint64_t seed) : seed(seed), images(plan.batch * plan.pixels), labels(plan.batch) {
    Random random(seed);
    for (float& pixel : images) pixel = static_cast<float>(random.uniform() - 0.5);
    for (uint8_t& label : labels) label = static_cast<uint8_t>(random.below(plan.classes));
    for (const Tensor& tensor : plan.schema) {
      const double outputs = static_cast<double>(tensor.shape.back());
      const double inputs = static_cast<double>(tensor.elements()) / outputs;
      std::vector<float>& to = values.emplace_back(on_own_pages(tensor.elements()));
      for (float& value : to) value = static_cast<float>(random.normal() * std::sqrt(1.5 / inputs));
      gradient_values.emplace_back(on_own_pages(to.size()));
      std::fill(gradient_values.back().begin(), gradient_values.back().end(), kPoison);
    }
    for (size_t t = 0; t < values.size(); ++t) {
      parameters.push_back(absl::MakeConstSpan(values[t]));
      gradients.push_back(absl::MakeSpan(gradient_values[t]));
    }
  }

  /// A driver pins each page once: two tensors on one page would be one that is pinned and one that is not.
  static std::vector<float> on_own_pages(size_t elements) {
    constexpr size_t kPage = 4096 / sizeof(float);
    std::vector<float> result;
    result.reserve(elements + kPage);
    result.resize(elements);
    return result;
  }

  void descend(float rate) {
    for (size_t t = 0; t < values.size(); ++t) {
      for (size_t i = 0; i < values[t].size(); ++i) values[t][i] -= rate * gradient_values[t][i];
    }
  }

  const uint64_t seed;
  std::vector<float> images;
  std::vector<uint8_t> labels;
  std::vector<std::vector<float>> values, gradient_values;
  std::vector<absl::Span<const float>> parameters;
  std::vector<absl::Span<float>> gradients;
};

/// |a - b| / |b| as vectors. Where the parts of a gradient all but cancel, what is left of them is no measure.
double distance(absl::Span<const float> a, absl::Span<const float> b) {
  constexpr double kSmall = 1e-2;
  double difference = 0.0, length = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference) / (std::sqrt(length) + kSmall);
}

std::unique_ptr<DeviceNetwork> make(const NetworkPlan& plan) {
  absl::StatusOr<std::unique_ptr<DeviceNetwork>> network = DeviceNetwork::create(plan, *compute());
  EXPECT_TRUE(network.ok()) << network.status();
  return *std::move(network);
}

float step(DeviceNetwork& network, const Problem& p, const GradientReady& ready = nullptr) {
  const absl::StatusOr<float> cost = network.step(p.images, p.labels, p.parameters, p.gradients, ready);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *cost;
}

constexpr Mlp::Shape kMlp{.batch = 9, .inputs = 16, .hidden = 11, .classes = 4};
constexpr Cnn::Shape kCnn{
    .batch = 5, .side = 12, .first_channels = 8, .second_channels = 16, .hidden = 33, .classes = 10};

std::unique_ptr<Mlp> twin(const Mlp::Shape& shape) { return *Mlp::create(shape, 1); }
std::unique_ptr<Cnn> twin(const Cnn::Shape& shape) { return *Cnn::create(shape, 1); }
NetworkPlan plan_of(const Mlp::Shape& shape) { return mlp_plan(shape); }
NetworkPlan plan_of(const Cnn::Shape& shape) { return cnn_plan(shape); }

template <typename Shape>
bool is_stable(const Shape& shape, uint64_t seed) {
  const NetworkPlan plan = plan_of(shape);
  const auto gradients_of = [&](const std::vector<float>& images) {
    const Problem p(plan, seed);
    twin(shape)->step(images, p.labels, p.parameters, p.gradients, nullptr);
    return p.gradient_values;
  };
  return rounding_is_harmless(Problem(plan, seed).images, seed, gradients_of, distance);
}

template <typename Shape>
void expect_gradients_of_twin(const Shape& shape) {
  const NetworkPlan plan = plan_of(shape);
  const Problem ours(plan, stable_seed([&](uint64_t seed) { return is_stable(shape, seed); })), theirs(plan, ours.seed);
  SCOPED_TRACE(::testing::Message() << plan.name << ", seed " << ours.seed);
  const auto network = make(plan);
  step(*network, Problem(plan, ours.seed + 1));  // a batch before it must leave nothing behind
  const float cost = step(*network, ours);
  const float expected = twin(shape)->step(theirs.images, theirs.labels, theirs.parameters, theirs.gradients, nullptr);
  EXPECT_NEAR(cost, expected, 1e-5 * (1.0 + expected));
  for (size_t t = 0; t < plan.schema.size(); ++t) {
    EXPECT_LT(distance(ours.gradients[t], theirs.gradients[t]), kSmooth) << plan.schema[t].name;
    EXPECT_THAT(ours.gradients[t], ::testing::Not(::testing::Contains(kPoison))) << plan.schema[t].name;
  }
}

TEST_F(DeviceNetworks, MlpHasTheGradientsOfItsTwin) {
  const Mlp::Shape shapes[] = {kMlp, {}, {.batch = 1, .inputs = 1, .hidden = 1, .classes = 2}, {.batch = 33}};
  for (const Mlp::Shape& shape : shapes) expect_gradients_of_twin(shape);
}

// Seed 3710210495 gives a pool with two nearly equal values: the gradients of two correct networks differ by 3 %.
TEST_F(DeviceNetworks, AProblemThatRoundingDecidesIsNotStable) {
  EXPECT_FALSE(is_stable(Cnn::Shape{.batch = 2}, 3710210495));
}

TEST_F(DeviceNetworks, CnnHasTheGradientsOfItsTwin) {
  Cnn::Shape linear = kCnn;
  linear.logits_relu = false;
  const Cnn::Shape shapes[] = {
      kCnn,
      linear,
      {.batch = 3, .side = 4, .first_channels = 1, .second_channels = 1, .hidden = 2, .classes = 2},
      {.batch = 2}};
  for (const Cnn::Shape& shape : shapes) expect_gradients_of_twin(shape);
}

/// The seed is constant: with other data a ReLU's input near 0 can separate two correct networks.
template <typename Shape>
void expect_same_training(const Shape& shape) {
  const NetworkPlan plan = plan_of(shape);
  Problem ours(plan, 1), theirs(plan, ours.seed);
  SCOPED_TRACE(::testing::Message() << plan.name << ", seed " << ours.seed);
  const auto network = make(plan);
  const auto other = twin(shape);
  for (size_t i = 0; i < 20; ++i) {
    const Problem batch(plan, ours.seed + 100 + i);
    ours.images = theirs.images = batch.images;
    ours.labels = theirs.labels = batch.labels;
    const float expected = other->step(theirs.images, theirs.labels, theirs.parameters, theirs.gradients, nullptr);
    EXPECT_NEAR(step(*network, ours), expected, 1e-4 * (1.0 + expected)) << "step " << i;
    const std::optional<float> accuracy = network->batch_accuracy();
    ASSERT_TRUE(accuracy.has_value()) << "step " << i;
    EXPECT_EQ(accuracy, other->batch_accuracy()) << "step " << i;
    ours.descend(0.02f);
    theirs.descend(0.02f);
  }
  for (size_t t = 0; t < plan.schema.size(); ++t) {
    EXPECT_LT(distance(ours.values[t], theirs.values[t]), 1e-4) << plan.schema[t].name;
  }
}

TEST_F(DeviceNetworks, TwentyStepsLeadWhereTheTwinGoes) {
  expect_same_training(Mlp::Shape{});
  expect_same_training(kCnn);
}

template <typename Shape>
void expect_not_a_number_as_in_the_twin(const Shape& shape) {
  const NetworkPlan plan = plan_of(shape);
  for (size_t tensor = 0; tensor < plan.schema.size(); ++tensor) {
    Problem p(plan, 9);
    p.values[tensor].back() = std::nanf("");
    EXPECT_TRUE(std::isnan(step(*make(plan), p))) << plan.schema[tensor].name;
    EXPECT_TRUE(std::isnan(twin(shape)->step(p.images, p.labels, p.parameters, p.gradients, nullptr)))
        << plan.schema[tensor].name;
  }
}

TEST_F(DeviceNetworks, DivergedParametersShowInTheCostAsInThatOfTheTwin) {
  expect_not_a_number_as_in_the_twin(kMlp);
  expect_not_a_number_as_in_the_twin(kCnn);
}

template <typename Shape>
void expect_each_reported_when_complete(const Shape& shape, const std::vector<size_t>& expected_order) {
  const NetworkPlan plan = plan_of(shape);
  const Problem p(plan, 4);
  std::vector<size_t> order;
  std::vector<std::vector<float>> when_ready(p.values.size());
  step(*make(plan), p, [&](size_t tensor) {
    order.push_back(tensor);
    when_ready[tensor].assign(p.gradients[tensor].begin(), p.gradients[tensor].end());
  });
  EXPECT_EQ(order, expected_order);
  for (size_t t = 0; t < when_ready.size(); ++t) {
    EXPECT_EQ(absl::MakeConstSpan(when_ready[t]), p.gradients[t]) << "tensor " << t;
  }
}

TEST_F(DeviceNetworks, ReportsEachGradientWhenItIsComplete) {
  expect_each_reported_when_complete(kMlp, {1, 3, 0, 2});
  expect_each_reported_when_complete(kCnn, {8, 9, 6, 7, 4, 5, 2, 3, 0, 1});
}

TEST_F(DeviceNetworks, AStepCopiesNoPageableMemoryButTheImagesOfTheCaller) {
  if (!gpu::Simulation::is_here()) GTEST_SKIP() << "only the simulated driver counts copies of pageable memory";
  const NetworkPlan plan = mlp_plan({.batch = 8192});  // labels and images have pages of their own
  const Problem p(plan, 5);
  const auto network = make(plan);
  step(*network, p);
  const int before = gpu::Simulation::objects().pageable_copies;
  step(*network, p);
  EXPECT_EQ(gpu::Simulation::objects().pageable_copies, before + 1);
}

TEST_F(DeviceNetworks, NeedsNoParametersOfATensorThatItCalledReady) {
  // Shared memory brings the fresh ones at once, while the rest of the step is still being computed.
  for (const NetworkPlan& plan : {mlp_plan(kMlp), cnn_plan(kCnn)}) {
    const Problem p(plan, 5);
    Problem q(plan, 5);
    const auto network = make(plan);
    step(*network, p);
    step(*network, q, [&](size_t tensor) { std::fill(q.values[tensor].begin(), q.values[tensor].end(), 1e9f); });
    EXPECT_EQ(p.gradient_values, q.gradient_values) << plan.name;
  }
}

/// Gradients and cost of a second step, with variables that stay on the device.
std::pair<float, std::vector<float>> second_step_that_stays(const NetworkPlan& plan) {
  const Problem p(plan, 5), q(plan, 6);
  const auto network = make(plan);
  step(*network, q);
  network->stay_on_device();
  const DeviceBlock block = network->device_block();
  float* next = block.parameters;
  for (const std::vector<float>& values : p.values) {
    network->device()->upload(next, values.data(), values.size() * sizeof(float));
    next += values.size();
  }
  const size_t elements = static_cast<size_t>(next - block.parameters);
  step(*network, q);  // with the images of q; the recording is made here
  std::vector<size_t> order;
  const float cost = step(*network, p, [&](size_t tensor) { order.push_back(tensor); });
  EXPECT_EQ(order.size(), plan.schema.size());
  std::vector<float> gradients(elements);
  EXPECT_TRUE(
      network->device()->wait(network->device()->download(gradients.data(), block.gradients, elements * 4)).ok());
  return {cost, gradients};
}

TEST_F(DeviceNetworks, AStepThatStaysHasTheBitsOfOneThatIsCopied) {
  for (const NetworkPlan& plan : {mlp_plan(kMlp), cnn_plan(kCnn)}) {
    const Problem p(plan, 5);
    const auto network = make(plan);
    const float cost = step(*network, p);
    const auto [cost_that_stays, gradients] = second_step_that_stays(plan);
    EXPECT_EQ(cost_that_stays, cost) << plan.name;
    size_t at = 0;
    for (const std::vector<float>& expected : p.gradient_values) {
      EXPECT_EQ(absl::MakeConstSpan(gradients).subspan(at, expected.size()), absl::MakeConstSpan(expected))
          << plan.name;
      at += expected.size();
    }
  }
}

/// The sum of one tower is its gradient. Steps with a sum are not recorded.
class SumOfOneTower final : public gpu::TowerSum {
 public:
  explicit SumOfOneTower(gpu::Compute& compute) : compute_(compute) {}
  const std::string& name() const override { return name_; }
  absl::StatusOr<gpu::CopyTicket> start(size_t, absl::Span<const Part>) override {
    return compute_.download(nullptr, nullptr, 0);
  }
  bool is_done(size_t, gpu::CopyTicket ticket) override { return compute_.is_done(ticket); }
  absl::Status wait(size_t, gpu::CopyTicket ticket) override { return compute_.wait(ticket); }
  void abort(const absl::Status&) override {}

 private:
  gpu::Compute& compute_;
  const std::string name_ = "one tower";
};

TEST_F(DeviceNetworks, OneCallStartsAStepThatStays) {
  const NetworkPlan plan = mlp_plan(Mlp::Shape{});
  const Problem p(plan, 5);
  const auto network = make(plan);
  if (!network->device()->is_device()) GTEST_SKIP() << "only a GPU records a step";
  const bool counts = gpu::Simulation::is_here();
  network->stay_on_device();
  // Reports the shortest time of a step, and returns how many operations the last step has started.
  const auto measure = [&](const char* fact) {
    step(*network, p);  // loads the kernels, or records the step
    double seconds = 1e9;
    int started = 0;
    for (int round = 0; round < 10; ++round) {
      const int before = counts ? gpu::Simulation::objects().started : 0;
      const TimePoint began = Clock::now();
      step(*network, p);
      seconds = std::min(seconds, seconds_since(began));
      if (counts) started = gpu::Simulation::objects().started - before;
    }
    gpu::report_fact(fact, fmt::format("{:.1f}", seconds * 1e6));
    return started;
  };
  SumOfOneTower sum(*network->device());
  network->average_by(&sum, 0);
  const int one_by_one = measure("step_one_by_one_us");
  network->average_by(nullptr, 0);
  const int recorded = measure("step_recorded_us");
  EXPECT_EQ(network->launches(), "recorded, 1 launch");
  if (!counts) return;  // a real driver does not count
  EXPECT_GE(one_by_one, 10);
  EXPECT_EQ(recorded, 1);
}

TEST_F(DeviceNetworks, AStepThatCannotBeRecordedHasTheSameBitsOneByOne) {
  if (!gpu::Simulation::is_here()) GTEST_SKIP() << "only the simulated driver refuses to record";
  const NetworkPlan plan = mlp_plan(kMlp);
  const auto recorded = second_step_that_stays(plan);
  for (const auto& [words, reason] :
       {std::pair{"stream_writes=0", "no writes of a stream into host memory"},
        std::pair{"pin=2", "pinning 4096 bytes of host memory"}, std::pair{"capture=900", "cublasSgemm"},
        std::pair{"capture_write=900", "marking a point"}, std::pair{"instantiate=2", "CUDA_ERROR_OUT_OF_MEMORY"}}) {
    gpu::Simulation::configure(words);
    EXPECT_EQ(second_step_that_stays(plan), recorded) << words;
    const Problem p(plan, 5);
    const auto network = make(plan);
    network->stay_on_device();
    step(*network, p);
    const int before = gpu::Simulation::objects().started;
    step(*network, p);
    EXPECT_GE(gpu::Simulation::objects().started - before, 10) << words;
    EXPECT_THAT(network->launches(), AllOf(HasSubstr("one by one: "), HasSubstr(reason)));
    EXPECT_EQ(gpu::Simulation::objects().graphs, 0) << words;
  }
  gpu::Simulation::configure("");
}

/// A recording copies to pinned memory, and a later pin is another one.
TEST_F(DeviceNetworks, AStepAfterAReleaseOfMemoryIsRecordedAgain) {
  const NetworkPlan plan = mlp_plan(kMlp);
  const Problem p(plan, 5);
  const auto network = make(plan);
  network->stay_on_device();
  const float cost = step(*network, p);
  network->release_memory();
  EXPECT_EQ(step(*network, p), cost);
  EXPECT_EQ(step(*network, p), cost);
}

/// The error of a copy is not yet known when the recording begins. The step would run with former variables.
TEST_F(DeviceNetworks, ACopyThatFailsIsTheErrorOfTheFirstRecordedStep) {
  if (!gpu::Simulation::is_here()) GTEST_SKIP() << "only the simulated driver refuses each address of freed memory";
  const NetworkPlan plan = mlp_plan(kMlp);
  const Problem p(plan, 5);
  const auto network = make(plan);
  step(*network, p);
  network->stay_on_device();
  const DeviceBlock block = network->device_block();
  network->copy_parameters_from((*network->device()->allocate(block.bytes))->as<float>());  // freed here
  const auto failed = network->step(p.images, p.labels, p.parameters, p.gradients, nullptr);
  EXPECT_THAT(failed.status().ToString(), HasSubstr("CUDA_ERROR_INVALID_VALUE"));
  network->copy_parameters_from(nullptr);
  step(*network, p);
  EXPECT_EQ(network->launches(), "recorded, 1 launch");
}

TEST_F(DeviceNetworks, AccuracyIsThatOfTheTwinAlsoForARest) {
  const NetworkPlan plan = cnn_plan(kCnn);
  const Problem p(plan, 11);
  Random random(12);
  std::vector<uint8_t> images(13 * plan.pixels), labels(13);
  for (uint8_t& pixel : images) pixel = static_cast<uint8_t>(random.below(256));
  for (uint8_t& label : labels) label = static_cast<uint8_t>(random.below(3));  // so that some are right
  const absl::StatusOr<float> share = make(plan)->accuracy(images, labels, p.parameters);
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(*share, twin(kCnn)->accuracy(images, labels, p.parameters));
}

TEST_F(DeviceNetworks, TooLittleMemorySaysHowMuchIsNeeded) {
  const auto made =
      DeviceNetwork::create(cnn_plan({.batch = 100}), std::make_unique<FaultyCompute>(Fault{.room_bytes = 64 << 20}));
  EXPECT_TRUE(absl::IsResourceExhausted(made.status()));
  EXPECT_THAT(made.status().ToString(),
              AllOf(HasSubstr("model cnn with batches of 100 needs 1"), HasSubstr(" MiB: too much was asked for")));
}

TEST_F(DeviceNetworks, ALostDeviceIsItsErrorAndNothingIsCalledReadyAfterIt) {
  const NetworkPlan plan = cnn_plan(kCnn);
  const Problem p(plan, 13);
  // The costs are a step's first copy back, then come ten gradients.
  for (const gpu::CopyTicket at : {1u, 2u, 5u, 11u}) {
    auto network = DeviceNetwork::create(plan, std::make_unique<FaultyCompute>(Fault{.lost_at = at}));
    ASSERT_TRUE(network.ok()) << network.status();
    std::vector<size_t> ready;
    const absl::StatusOr<float> cost = (*network)->step(p.images, p.labels, p.parameters, p.gradients,
                                                        [&](size_t tensor) { ready.push_back(tensor); });
    EXPECT_TRUE(absl::IsUnavailable(cost.status())) << cost.status();
    EXPECT_EQ(ready.size(), at >= 2 ? at - 2 : 0) << "lost at copy " << at;
    EXPECT_TRUE(absl::IsUnavailable((*network)->step(p.images, p.labels, p.parameters, p.gradients, nullptr).status()));
    const std::vector<uint8_t> images(plan.pixels), labels(1);
    EXPECT_TRUE(absl::IsUnavailable((*network)->accuracy(images, labels, p.parameters).status()));
  }
}

}  // namespace
}  // namespace gradrail::worker
