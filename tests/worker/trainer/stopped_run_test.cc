// The error of a run that was asked to stop: only a loss during the run makes it unfinished.
#include <atomic>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/workload.h"
#include "worker/trainer/local_variables.h"
#include "worker/trainer/trainer.h"

namespace gradrail::worker {
namespace {

using ::testing::StartsWith;

/// Where the request to stop and an UNAVAILABLE arrive together.
enum class Loss : uint8_t { step, model, departure };

/// Variables that lose their parameter servers.
class LostVariables final : public Variables {
 public:
  LostVariables(Variables& local, Loss loss, std::atomic<bool>& stop) : local_(local), loss_(loss), stop_(stop) {}

  const ps::Schema& schema() const override { return local_.schema(); }
  absl::Span<float> parameters(size_t tensor_index) override { return local_.parameters(tensor_index); }
  absl::Span<float> gradients(size_t tensor_index) override { return local_.gradients(tensor_index); }
  absl::Status start() override { return local_.start(); }
  void ready(size_t tensor_index) override { local_.ready(tensor_index); }
  void exchange() override { local_.exchange(); }
  absl::Status wait() override { return loss_ == Loss::step ? lose() : local_.wait(); }
  uint64_t global_step() const override { return local_.global_step(); }
  uint64_t position() const override { return local_.position(); }
  absl::Status pull_final() override { return local_.pull_final(); }
  absl::Status pull() override { return local_.pull(); }
  bool saves_checkpoints() const override { return false; }
  absl::Status begin_checkpoint() override { return local_.begin_checkpoint(); }
  bool checkpoint_under_way() const override { return false; }
  absl::StatusOr<std::vector<std::string>> finish_checkpoint() override { return local_.finish_checkpoint(); }
  std::vector<std::string> summary(bool verbose) const override { return local_.summary(verbose); }
  absl::Status leave() override { return loss_ == Loss::departure ? lose() : local_.leave(); }
  absl::StatusOr<bool> leave_unless_last() override { return local_.leave_unless_last(); }
  absl::Status give_up(const std::string& why) override { return local_.give_up(why); }

  absl::Status lose() {
    stop_ = true;
    return absl::UnavailableError("ps 0 was lost");
  }

 private:
  Variables& local_;
  const Loss loss_;
  std::atomic<bool>& stop_;
};

/// The linear model on a device that is lost.
class LostModel final : public Workload {
 public:
  LostModel(Workload& linear, Loss loss, std::atomic<bool>& stop) : linear_(linear), loss_(loss), stop_(stop) {}

  const ps::Schema& schema() const override { return linear_.schema(); }
  void initialise(uint64_t seed, Gradients parameters) const override { linear_.initialise(seed, parameters); }
  size_t batches_per_epoch() const override { return linear_.batches_per_epoch(); }
  size_t batch_size() const override { return linear_.batch_size(); }
  void seek(uint64_t step) override { linear_.seek(step); }
  void prefetch() override { linear_.prefetch(); }
  absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) override {
    if (loss_ != Loss::model) return linear_.step(parameters, gradients, ready);
    stop_ = true;
    return absl::UnavailableError("GPU 0 was lost");
  }
  absl::StatusOr<Verdict> verdict(Parameters parameters) override { return linear_.verdict(parameters); }

 private:
  Workload& linear_;
  const Loss loss_;
  std::atomic<bool>& stop_;
};

absl::Status run(Loss loss) {
  const auto linear = make_workload({.model = "linear", .batch_size = 32, .seed = 3});
  const auto local = LocalVariables::create((*linear)->schema(), {.learning_rate = 0.1f}, nullptr);
  std::atomic<bool> stop = false;
  LostVariables variables(**local, loss, stop);
  LostModel model(**linear, loss, stop);
  return train(variables, model, {.epochs = 1}, {}, stop);
}

TEST(StoppedRun, ALossDuringTheRunLeavesItUnfinished) {
  const absl::Status ended = run(Loss::step);
  EXPECT_TRUE(absl::IsUnavailable(ended));
  EXPECT_THAT(std::string(ended.message()), StartsWith("stopped after 0 steps of this worker; the run is unfinished"));
}

TEST(StoppedRun, AFailureOfTheModelKeepsItsText) {
  const absl::Status ended = run(Loss::model);
  EXPECT_TRUE(absl::IsUnavailable(ended));
  EXPECT_EQ(ended.message(), "the model failed after 0 steps of this worker: GPU 0 was lost");
}

TEST(StoppedRun, ALossAfterTheEndKeepsItsText) {
  EXPECT_EQ(run(Loss::departure), absl::UnavailableError("ps 0 was lost"));
}

}  // namespace
}  // namespace gradrail::worker
