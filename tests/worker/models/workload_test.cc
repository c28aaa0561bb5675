#include "worker/models/workload.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/idx_files.h"
#include "tests/worker/models/reference_trainer.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Two classes that differ in brightness only, in the format of MNIST.
void write_two_classes(const TemporaryFolder& folder) {
  for (const auto& [prefix, count] : {std::pair<std::string, uint32_t>{"train", 240}, {"t10k", 50}}) {
    Bytes images, labels;
    for (uint32_t i = 0; i < count; ++i) {
      const bool bright = i % 3 == 0;
      images.insert(images.end(), 16, bright ? 250 : 20);
      labels.push_back(bright ? 7 : 2);
    }
    folder.write(prefix + "-images-idx3-ubyte", idx_bytes({count, 4, 4}, images));
    folder.write(prefix + "-labels-idx1-ubyte", idx_bytes({count}, labels));
  }
}

/// Trains as one worker in sync mode would, by plain SGD.
class Trainee {
 public:
  Trainee(Workload& workload, uint64_t seed) : workload_(workload) {
    for (const Tensor& tensor : workload.schema()) {
      size_t count = 1;
      for (const int64_t size : tensor.shape) count *= static_cast<size_t>(size);
      values_.emplace_back(count);
      gradient_values_.emplace_back(count);
    }
    for (size_t t = 0; t < values_.size(); ++t) {
      writable_.push_back(absl::MakeSpan(values_[t]));
      parameters_.push_back(absl::MakeConstSpan(values_[t]));
      gradients_.push_back(absl::MakeSpan(gradient_values_[t]));
    }
    workload.initialise(seed, writable_);
  }

  float step(float learning_rate) {
    const float cost = workload_.step(parameters_, gradients_, nullptr).value();
    workload_.prefetch();
    for (size_t t = 0; t < values_.size(); ++t) {
      for (size_t i = 0; i < values_[t].size(); ++i) values_[t][i] -= learning_rate * gradient_values_[t][i];
    }
    return cost;
  }

  Parameters parameters() const { return parameters_; }
  const std::vector<std::vector<float>>& values() const { return values_; }

 private:
  Workload& workload_;
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<float>> gradient_values_;
  std::vector<absl::Span<float>> writable_;
  std::vector<absl::Span<const float>> parameters_;
  std::vector<absl::Span<float>> gradients_;
};

TEST(Workload, UnknownModelListsTheKnown) {
  const absl::Status status = make_workload({.model = "transformer"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("transformer"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("mlp, cnn, linear"));
}

TEST(Workload, BatchMustFit) {
  const TemporaryFolder folder;
  write_two_classes(folder);
  EXPECT_TRUE(make_workload({.batch_size = 220, .data_dir = folder.path()}).ok());
  EXPECT_EQ(make_workload({.batch_size = 221, .data_dir = folder.path()}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(make_workload({.batch_size = 0, .data_dir = folder.path()}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(make_workload({.model = "linear", .batch_size = 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Workload, MissingDataIsNotFound) {
  EXPECT_EQ(make_workload({.data_dir = "/nonexistent"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(Workload, LinearComesByName) {
  const absl::StatusOr<std::unique_ptr<Workload>> workload = make_workload({.model = "linear", .batch_size = 7});
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ((*workload)->batch_size(), 7u);
  EXPECT_EQ((*workload)->schema().size(), 2u);
}

TEST(Workload, MlpLearnsTwoClassesOfAnySize) {
  const TemporaryFolder folder;
  write_two_classes(folder);
  const absl::StatusOr<std::unique_ptr<Workload>> workload =
      make_workload({.batch_size = 20, .data_dir = folder.path()});
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ((*workload)->schema()[0].shape, (std::vector<int64_t>{16, 100}));
  EXPECT_EQ((*workload)->batches_per_epoch(), 11u);
  Trainee trainee(**workload, 1);
  const float first_cost = trainee.step(0.1f);
  float last_cost = 0.0f;
  const std::optional<float> accuracy = (*workload)->batch_accuracy();
  ASSERT_TRUE(accuracy.has_value());
  EXPECT_LT(*accuracy, 1.0f);
  for (int i = 0; i < 300; ++i) last_cost = trainee.step(0.1f);
  EXPECT_EQ((*workload)->batch_accuracy(), 1.0f);
  EXPECT_LT(last_cost, 0.2f * first_cost);
  const absl::StatusOr<Verdict> verdict = (*workload)->verdict(trainee.parameters());
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_THAT(verdict->lines, ::testing::ElementsAre("Test-Accuracy: 1.00"));
  EXPECT_EQ(verdict->accuracy, 1.0f);
}

TEST(Workload, MlpFollowsTheReferenceTrainer) {
  const absl::StatusOr<std::string> folder = default_mnist_folder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const absl::StatusOr<MnistData> data = load_mnist(*folder);
  ASSERT_TRUE(data.ok()) << data.status();
  const ReferenceRun run{.steps = 30, .learning_rate = 0.1f, .seed = 4};
  const ReferenceResult expected = train_reference(data->train, run);

  const absl::StatusOr<std::unique_ptr<Workload>> workload = make_workload({.data_dir = *folder, .seed = run.seed});
  ASSERT_TRUE(workload.ok()) << workload.status();
  Trainee trainee(**workload, run.seed);
  for (size_t i = 0; i < run.steps; ++i) EXPECT_NEAR(trainee.step(run.learning_rate), expected.costs[i], 1e-4);
  for (size_t t = 0; t < expected.parameters.size(); ++t) {
    for (size_t i = 0; i < expected.parameters[t].size(); ++i) {
      ASSERT_NEAR(trainee.values()[t][i], expected.parameters[t][i], 1e-5) << "tensor " << t << " element " << i;
    }
  }
}

TEST(Workload, ReferenceTrainerAveragesItsWorkers) {
  const TemporaryFolder folder;
  write_two_classes(folder);
  const absl::StatusOr<MnistData> data = load_mnist(folder.path());
  ASSERT_TRUE(data.ok()) << data.status();
  const ReferenceRun run{.workers = 3, .steps = 1, .batch_size = 20, .learning_rate = 1.0f};
  const Tensors<float> together = train_reference(data->train, run).parameters;
  // One step from the same start: the mean of what each worker would have done alone.
  std::vector<absl::StatusOr<std::unique_ptr<Workload>>> workloads;
  std::vector<Trainee> alone;
  for (uint64_t task = 0; task < 3; ++task) {
    workloads.push_back(make_workload({.batch_size = 20, .data_dir = folder.path(), .task_index = task}));
    ASSERT_TRUE(workloads.back().ok());
    alone.emplace_back(**workloads.back(), run.seed).step(run.learning_rate);
  }
  EXPECT_NE(alone[0].values(), alone[1].values());
  for (size_t t = 0; t < together.size(); ++t) {
    for (size_t i = 0; i < together[t].size(); ++i) {
      const float mean = (alone[0].values()[t][i] + alone[1].values()[t][i] + alone[2].values()[t][i]) / 3.0f;
      ASSERT_NEAR(together[t][i], mean, 1e-5f) << "tensor " << t << " element " << i;
    }
  }
}

TEST(Workload, MlpReadsMnistWithinAnEpoch) {
  const absl::StatusOr<std::unique_ptr<Workload>> workload = make_workload({});
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ((*workload)->batches_per_epoch(), 550u);
  Trainee trainee(**workload, 1);
  for (size_t i = 0; i < 550; ++i) trainee.step(0.5f);
  const std::vector<std::string> verdict = (*workload)->verdict(trainee.parameters())->lines;
  ASSERT_EQ(verdict.size(), 1u);
  ASSERT_THAT(verdict[0], StartsWith("Test-Accuracy: "));
  EXPECT_GT(std::stod(verdict[0].substr(15)), 0.75) << verdict[0];
}

}  // namespace
}  // namespace gradrail::worker
