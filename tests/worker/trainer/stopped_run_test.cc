// A run that was asked to stop: its error (only a loss during the run makes it unfinished), and the order of its end.
#include <atomic>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/workload.h"
#include "worker/trainer/trainer.h"

namespace gradrail::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

/// Where the request to stop and an UNAVAILABLE arrive together.
enum class Loss : uint8_t { step, model, departure };

/// Variables in this process, with gradient descent. The cases below replace some calls.
class OwnVariables : public Variables {
 public:
  explicit OwnVariables(const Schema& schema) : schema_(schema) {
    for (const Tensor& tensor : schema_) {
      parameters_.emplace_back(tensor.elements());
      gradients_.emplace_back(tensor.elements());
    }
  }

  const Schema& schema() const override { return schema_; }
  absl::Span<float> parameters(size_t tensor_index) override { return absl::MakeSpan(parameters_[tensor_index]); }
  absl::Span<float> gradients(size_t tensor_index) override { return absl::MakeSpan(gradients_[tensor_index]); }
  absl::Status start() override { return absl::OkStatus(); }
  void ready(size_t) override {}
  void exchange() override {
    for (size_t t = 0; t < parameters_.size(); ++t) {
      for (size_t i = 0; i < parameters_[t].size(); ++i) parameters_[t][i] -= 0.1f * gradients_[t][i];
    }
    ++step_;
  }
  absl::Status wait() override { return absl::OkStatus(); }
  uint64_t global_step() const override { return step_; }
  uint64_t position() const override { return step_; }
  absl::Status finish_steps() override { return absl::OkStatus(); }
  absl::Status pull_final() override { return absl::OkStatus(); }
  absl::Status pull() override { return absl::OkStatus(); }
  std::vector<std::string> summary(bool) const override { return {}; }
  absl::Status leave() override { return absl::OkStatus(); }
  absl::StatusOr<bool> leave_unless_last() override { return true; }
  absl::Status give_up(const std::string&) override { return absl::OkStatus(); }

 private:
  const Schema schema_;
  std::vector<std::vector<float>> parameters_, gradients_;
  uint64_t step_ = 0;
};

/// Variables that lose their parameter servers.
class LostVariables final : public OwnVariables {
 public:
  LostVariables(const Schema& schema, Loss loss, std::atomic<bool>& stop)
      : OwnVariables(schema), loss_(loss), stop_(stop) {}

  absl::Status wait() override { return loss_ == Loss::step ? lose() : absl::OkStatus(); }
  absl::Status leave() override { return loss_ == Loss::departure ? lose() : absl::OkStatus(); }

  absl::Status lose() {
    stop_ = true;
    return absl::UnavailableError("ps 0 was lost");
  }

 private:
  const Loss loss_;
  std::atomic<bool>& stop_;
};

/// The linear model; the cases below replace a call.
class PassedModel : public Workload {
 public:
  explicit PassedModel(Workload& linear) : linear_(linear) {}

  const Schema& schema() const override { return linear_.schema(); }
  void initialise(uint64_t seed, Gradients parameters) const override { linear_.initialise(seed, parameters); }
  size_t batches_per_epoch() const override { return linear_.batches_per_epoch(); }
  size_t batch_size() const override { return linear_.batch_size(); }
  void seek(uint64_t step) override { linear_.seek(step); }
  void prefetch() override { linear_.prefetch(); }
  absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) override {
    return linear_.step(parameters, gradients, ready);
  }
  absl::StatusOr<Verdict> verdict(Parameters parameters) override { return linear_.verdict(parameters); }

 private:
  Workload& linear_;
};

/// On a device that is lost.
class LostModel final : public PassedModel {
 public:
  LostModel(Workload& linear, Loss loss, std::atomic<bool>& stop) : PassedModel(linear), loss_(loss), stop_(stop) {}

  absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) override {
    if (loss_ != Loss::model) return PassedModel::step(parameters, gradients, ready);
    stop_ = true;
    return absl::UnavailableError("GPU 0 was lost");
  }

 private:
  const Loss loss_;
  std::atomic<bool>& stop_;
};

absl::Status run(Loss loss) {
  const auto linear = make_workload({.model = "linear", .batch_size = 32, .seed = 3});
  std::atomic<bool> stop = false;
  LostVariables variables((*linear)->schema(), loss, stop);
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

/// Records the calls after the request to stop, which comes in the second step. `is_open`: another worker keeps that
/// step open for so long that the stop ends the wait.
class StoppedVariables final : public OwnVariables {
 public:
  struct Case {
    bool is_chief = false;
    bool is_open = false;
    bool is_last = false;  ///< the others leave first
  };
  StoppedVariables(const Schema& schema, Case options, std::atomic<bool>& stop, std::vector<std::string>& calls)
      : OwnVariables(schema), case_(options), stop_(stop), calls_(calls) {}

  bool is_chief() const override { return case_.is_chief; }
  absl::Status wait() override {
    if (stop_) {
      calls_.emplace_back("wait");
      is_under_way_ = false;
      return absl::OkStatus();
    }
    if (position() < 2) return absl::OkStatus();
    stop_ = true;
    is_under_way_ = case_.is_open;
    return case_.is_open ? absl::CancelledError("stopped while waiting") : absl::OkStatus();
  }
  absl::Status finish_steps() override { return call("finish_steps"); }
  absl::Status pull() override { return call("pull"); }
  absl::StatusOr<std::vector<std::string>> save_checkpoint() override {
    calls_.emplace_back("save");
    return std::vector<std::string>{"file"};
  }
  bool saves_checkpoints() const override { return true; }
  absl::StatusOr<bool> leave_unless_last() override {
    calls_.emplace_back("leave");
    return !case_.is_last;
  }

 private:
  /// As a client does: these two are refused while a step is open.
  absl::Status call(const char* name) {
    calls_.emplace_back(name);
    return is_under_way_ ? absl::FailedPreconditionError("an exchange is under way") : absl::OkStatus();
  }

  const Case case_;
  std::atomic<bool>& stop_;
  std::vector<std::string>& calls_;
  bool is_under_way_ = false;
};

/// Records its test.
class TestedModel final : public PassedModel {
 public:
  TestedModel(Workload& linear, std::vector<std::string>& calls) : PassedModel(linear), calls_(calls) {}

  absl::StatusOr<Verdict> verdict(Parameters parameters) override {
    calls_.emplace_back("test");
    return PassedModel::verdict(parameters);
  }

 private:
  std::vector<std::string>& calls_;
};

std::vector<std::string> calls_of(StoppedVariables::Case options) {
  const auto linear = make_workload({.model = "linear", .batch_size = 32, .seed = 3});
  std::atomic<bool> stop = false;
  std::vector<std::string> calls;
  StoppedVariables variables((*linear)->schema(), options, stop, calls);
  TestedModel model(**linear, calls);
  const absl::Status ended = train(variables, model, {.epochs = 1}, {}, stop);
  EXPECT_TRUE(ended.ok()) << ended;
  return calls;
}

TEST(StoppedRun, TheOthersDoNotWaitForTheTestOfTheModel) {
  EXPECT_THAT(calls_of({}), ElementsAre("finish_steps", "test", "leave"));
}

TEST(StoppedRun, AChiefSavesBeforeTheOthersContinue) {
  EXPECT_THAT(calls_of({.is_chief = true}), ElementsAre("save", "finish_steps", "test", "leave"));
}

/// The step needs the gradient of this worker and those of the others.
TEST(StoppedRun, AnOpenStepKeepsItsContributors) {
  EXPECT_THAT(calls_of({.is_open = true}), ElementsAre("test", "leave"));
}

TEST(StoppedRun, TheLastWorkerEndsAnOpenStepBeforeItPulls) {
  EXPECT_THAT(calls_of({.is_open = true, .is_last = true}), ElementsAre("test", "leave", "wait", "pull", "save"));
}

}  // namespace
}  // namespace gradrail::worker
