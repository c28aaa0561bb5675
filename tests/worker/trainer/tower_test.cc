#include "worker/trainer/tower.h"

#include <cmath>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "base/mutex.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/idx_files.h"
#include "tests/worker/models/faulty_compute.h"
#include "worker/data/dataset.h"
#include "worker/models/elementwise.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// Noise and labels, so that no two batches have the same gradient.
void write_noise(const TemporaryFolder& folder, uint32_t count) {
  Random random(17);
  for (const std::string prefix : {"train", "t10k"}) {
    Bytes images, labels;
    for (uint32_t i = 0; i < count; ++i) {
      for (size_t pixel = 0; pixel < 64; ++pixel) images.push_back(static_cast<uint8_t>(random.below(256)));
      labels.push_back(static_cast<uint8_t>(random.below(10)));
    }
    folder.write(prefix + "-images-idx3-ubyte", idx_bytes({count, 8, 8}, images));
    folder.write(prefix + "-labels-idx1-ubyte", idx_bytes({count}, labels));
  }
}

/// Parameters and gradients of a workload, and plain gradient descent on them.
class Trainee {
 public:
  explicit Trainee(Workload& workload) : workload_(workload) {
    for (const Tensor& tensor : workload.schema()) {
      values_.emplace_back(tensor.elements());
      gradient_values_.emplace_back(tensor.elements());
    }
    for (size_t t = 0; t < values_.size(); ++t) {
      writable_.push_back(absl::MakeSpan(values_[t]));
      parameters_.push_back(absl::MakeConstSpan(values_[t]));
      gradients_.push_back(absl::MakeSpan(gradient_values_[t]));
    }
    workload.initialise(3, writable_);
  }

  float step(float learning_rate, const GradientReady& ready = nullptr) {
    for (auto& tensor : gradient_values_) std::fill(tensor.begin(), tensor.end(), -12345.0f);
    const float cost = workload_.step(parameters_, gradients_, ready).value();
    workload_.prefetch();
    for (size_t t = 0; t < values_.size(); ++t) {
      for (size_t i = 0; i < values_[t].size(); ++i) values_[t][i] -= learning_rate * gradient_values_[t][i];
    }
    return cost;
  }

  absl::StatusOr<float> try_step(const GradientReady& ready) { return workload_.step(parameters_, gradients_, ready); }

  const std::vector<std::vector<float>>& values() const { return values_; }
  const std::vector<std::vector<float>>& gradients() const { return gradient_values_; }
  Parameters parameters() const { return parameters_; }

 private:
  Workload& workload_;
  std::vector<std::vector<float>> values_, gradient_values_;
  std::vector<absl::Span<float>> writable_, gradients_;
  std::vector<absl::Span<const float>> parameters_;
};

class TowersTest : public ::testing::Test {
 protected:
  TowersTest() { write_noise(folder_, 132); }  // 121 to train with: not a multiple of any batch

  using Device = std::function<std::unique_ptr<gpu::Compute>(size_t tower)>;

  std::unique_ptr<Towers> make(
      const std::string& model, size_t count, size_t batch_size,
      const Device& device = [](size_t) { return nullptr; }) {
    const WorkloadOptions options{.model = model, .batch_size = batch_size, .data_dir = folder_.path(), .seed = 5};
    const absl::StatusOr<std::shared_ptr<const MnistData>> data = load_data(options);
    EXPECT_TRUE(data.ok()) << data.status();
    absl::StatusOr<std::unique_ptr<Towers>> towers = Towers::create(
        count,
        [&](size_t tower) {
          WorkloadOptions of_tower = options;
          of_tower.tower = tower;
          of_tower.tower_count = count;
          of_tower.data = *data;
          return make_workload(of_tower, device(tower));
        },
        nullptr);
    EXPECT_TRUE(towers.ok()) << towers.status();
    return *std::move(towers);
  }

  TemporaryFolder folder_;
};

/// Largest |a - b| over |b|'s largest element, over all tensors.
double distance(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double worst = 0.0;
  for (size_t t = 0; t < b.size(); ++t) {
    double difference = 0.0, largest = 0.0;
    for (size_t i = 0; i < b[t].size(); ++i) {
      difference = std::max<double>(difference, std::abs(a[t][i] - b[t][i]));
      largest = std::max<double>(largest, std::abs(b[t][i]));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

TEST_F(TowersTest, TogetherTheyAreOneTowerWithTheCombinedBatch) {
  for (const std::string model : {"cnn", "mlp"}) {
    for (const size_t count : {size_t{2}, size_t{3}}) {
      SCOPED_TRACE(::testing::Message() << model << ", " << count << " towers");
      const auto one = make(model, 1, 12), several = make(model, count, 12 / count);
      EXPECT_EQ(one->batches_per_epoch(), several->batches_per_epoch());
      EXPECT_EQ(one->batch_size(), several->batch_size());
      Trainee a(*one), b(*several);
      for (size_t i = 0; i < 20; ++i) {  // beyond the end of an epoch, where the order changes
        const float cost = a.step(0.02f);
        EXPECT_NEAR(b.step(0.02f), cost, 1e-4 * (1.0 + cost)) << "step " << i;
      }
      EXPECT_LT(distance(b.values(), a.values()), 1e-4);
    }
  }
}

TEST_F(TowersTest, TheBitsDoNotDependOnTheOrderOfCompletion) {
  const auto first = make("cnn", 3, 5), second = make("cnn", 3, 5);
  Trainee a(*first), b(*second);
  for (size_t i = 0; i < 20; ++i) {
    ASSERT_EQ(a.step(0.02f), b.step(0.02f)) << "step " << i;
    ASSERT_EQ(a.gradients(), b.gradients()) << "step " << i;
  }
}

TEST_F(TowersTest, OnDevicesTheyLearnTheSame) {
  for (const std::string model : {"cnn", "mlp"}) {
    SCOPED_TRACE(model);
    // With `one`, tower 1 alone is on a device: the owner's memory combines both.
    const Device all = [](size_t) { return gpu::host_compute(); };
    const Device one = [](size_t tower) { return tower == 1 ? gpu::host_compute() : nullptr; };
    const auto on_cpus = make(model, 2, 6), on_devices = make(model, 2, 6, all), mixed = make(model, 2, 6, one);
    Trainee a(*on_cpus), b(*on_devices), c(*mixed);
    for (size_t i = 0; i < 20; ++i) {
      const float cost = a.step(0.02f);
      EXPECT_NEAR(b.step(0.02f), cost, 1e-4 * (1.0 + cost)) << "step " << i;
      EXPECT_NEAR(c.step(0.02f), cost, 1e-4 * (1.0 + cost)) << "step " << i;
    }
    EXPECT_LT(distance(b.values(), a.values()), 1e-4);
    EXPECT_LT(distance(c.values(), a.values()), 1e-4);
    on_devices->release_memory();
    EXPECT_EQ(on_devices->verdict(a.parameters())->lines, on_cpus->verdict(a.parameters())->lines);
  }
}

TEST_F(TowersTest, OneThatIsLostEndsTheStepOfAll) {
  constexpr gpu::CopyTicket kCopiesOfAStep = 5;  // the costs, four gradients
  for (const gpu::CopyTicket at : {2 * kCopiesOfAStep + 1, 2 * kCopiesOfAStep + 3, 3 * kCopiesOfAStep}) {
    const auto towers = make("mlp", 3, 4, [&](size_t tower) -> std::unique_ptr<gpu::Compute> {
      if (tower != 1) return gpu::host_compute();
      return std::make_unique<FaultyCompute>(Fault{.lost_at = at});
    });
    Trainee trainee(*towers);
    trainee.step(0.02f);
    trainee.step(0.02f);
    for (int again = 0; again < 2; ++again) {
      size_t reported = 0;
      const absl::Status lost = trainee.try_step([&](size_t) { ++reported; }).status();
      EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
      EXPECT_THAT(lost.ToString(), HasSubstr("tower 1: GPU 7 (faulty): the GPU was lost"));
      EXPECT_LT(reported, 4u) << "a mean of two of three towers is none";
    }
  }
}

TEST_F(TowersTest, NcclNeedsAGpuForEachTower) {
  const auto make_with = [&](gpu::Reduce reduce) {
    return Towers::create(
               2, [](size_t) { return make_workload({.model = "linear"}); }, nullptr, reduce)
        .status();
  };
  EXPECT_TRUE(make_with(gpu::Reduce::automatic).ok());
  EXPECT_TRUE(make_with(gpu::Reduce::host).ok());
  const absl::Status refused = make_with(gpu::Reduce::nccl);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.ToString(), HasSubstr("--reduce nccl: tower 0 computes on CPUs"));
}

TEST_F(TowersTest, OneTowerIsThePlainWorkload) {
  const auto towers = make("cnn", 1, 8);
  const auto plain = make_workload({.model = "cnn", .batch_size = 8, .data_dir = folder_.path(), .seed = 5});
  ASSERT_TRUE(plain.ok()) << plain.status();
  Trainee a(*towers), b(**plain);
  for (size_t i = 0; i < 5; ++i) {
    ASSERT_EQ(a.step(0.02f), b.step(0.02f));
    const std::optional<float> accuracy = towers->batch_accuracy();
    ASSERT_TRUE(accuracy.has_value());
    ASSERT_EQ(accuracy, (*plain)->batch_accuracy());
  }
  EXPECT_EQ(a.values(), b.values());
  EXPECT_EQ(towers->verdict(a.parameters())->lines, (*plain)->verdict(b.parameters())->lines);
}

TEST_F(TowersTest, TheOwnerHearsOfEachTensorOnceWhenItIsAveraged) {
  const auto towers = make("mlp", 2, 6);
  Trainee trainee(*towers);
  const std::thread::id owner = std::this_thread::get_id();
  std::vector<size_t> heard;
  std::vector<std::vector<float>> when_heard(4);
  trainee.step(0.0f, [&](size_t tensor) {
    EXPECT_EQ(std::this_thread::get_id(), owner);
    heard.push_back(tensor);
    when_heard[tensor] = trainee.gradients()[tensor];
  });
  EXPECT_THAT(heard, UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_EQ(when_heard, trainee.gradients());
}

TEST_F(TowersTest, EachThreadGetsItsNumberBeforeItMakesItsTower) {
  Mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<size_t> bound, made;
  const auto towers = Towers::create(
      3,
      [&](size_t tower) {
        const MutexLock lock(mutex);
        EXPECT_THAT(bound, ::testing::Contains(tower));
        EXPECT_TRUE(threads.contains(std::this_thread::get_id()));
        made.push_back(tower);
        return make_workload({.model = "linear", .batch_size = 4, .tower = tower, .tower_count = 3});
      },
      [&](size_t tower) {
        const MutexLock lock(mutex);
        bound.push_back(tower);
        threads.insert(std::this_thread::get_id());
      });
  ASSERT_TRUE(towers.ok()) << towers.status();
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
  EXPECT_THAT(made, UnorderedElementsAre(0, 1, 2));
}

TEST_F(TowersTest, ATowerThatCannotStartIsAnErrorAndLeavesNoThread) {
  const auto towers = Towers::create(
      3,
      [&](size_t tower) -> absl::StatusOr<std::unique_ptr<Workload>> {
        if (tower == 1) return absl::ResourceExhaustedError("tower 1 has no memory");
        return make_workload({.model = "linear"});
      },
      nullptr);
  EXPECT_THAT(towers.status().ToString(), HasSubstr("tower 1 has no memory"));
}

TEST_F(TowersTest, BatchesOfAllTowersMustFit) {
  EXPECT_EQ(
      make_workload({.model = "cnn", .batch_size = 61, .data_dir = folder_.path(), .tower_count = 2}).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(make_workload({.model = "cnn", .batch_size = 60, .data_dir = folder_.path(), .tower_count = 2}).ok());
}

TEST(Average, IsTheSumInOrderDividedByTheNumber) {
  Random random(std::random_device{}());
  for (const size_t count : {size_t{1}, size_t{7}, size_t{1024}, size_t{2500}}) {
    std::vector<std::vector<float>> sources(3, std::vector<float>(count));
    std::vector<const float*> pointers;
    for (auto& source : sources) {
      for (float& value : source) value = static_cast<float>(random.normal());
      pointers.push_back(source.data());
    }
    std::vector<float> target(count + 1, -12345.0f);
    average(pointers, count, target.data());
    for (size_t i = 0; i < count; ++i) {
      const float sum = (sources[0][i] + sources[1][i]) + sources[2][i];
      ASSERT_EQ(target[i], sum * (1.0f / 3.0f)) << i;
    }
    EXPECT_EQ(target[count], -12345.0f);
  }
}

}  // namespace
}  // namespace gradrail::worker
