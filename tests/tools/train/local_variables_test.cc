#include "tools/train/local_variables.h"

#include <atomic>
#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/workload.h"
#include "worker/trainer/trainer.h"

namespace gradrail::tools {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::MatchesRegex;

const std::atomic<bool> kNeverStop = false;

std::unique_ptr<LocalVariables> make(const OptimizerConfig& optimizer) {
  absl::StatusOr<std::unique_ptr<LocalVariables>> made =
      LocalVariables::create({{"a", {3}}, {"b", {2, 2}}}, optimizer, nullptr);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

TEST(LocalVariables, EveryTensorIsAppliedOnceAStepInAnyOrder) {
  const OptimizerConfig adam{.kind = OptimizerKind::adam, .learning_rate = 0.1f};
  const auto early = make(adam), late = make(adam);
  for (int step = 0; step < 5; ++step) {
    for (const auto& variables : {early.get(), late.get()}) {
      for (size_t t = 0; t < 2; ++t) {
        for (float& value : variables->gradients(t)) value = static_cast<float>(step) - 1.5f;
      }
    }
    early->ready(1);
    EXPECT_NE(early->parameters(1)[0], late->parameters(1)[0]) << "applied at once";
    if (step % 2 == 0) early->ready(0);
    early->exchange();
    late->exchange();
    ASSERT_TRUE(early->wait().ok());
    for (size_t t = 0; t < 2; ++t) {
      ASSERT_EQ(absl::MakeConstSpan(early->parameters(t)), absl::MakeConstSpan(late->parameters(t))) << step;
    }
  }
  EXPECT_EQ(early->global_step(), 5u);
}

TEST(LocalVariables, MomentumIsRememberedPerTensor) {
  const auto variables = make({.kind = OptimizerKind::momentum, .learning_rate = 1.0f, .momentum = 0.5f});
  variables->gradients(0)[1] = 1.0f;
  variables->gradients(1)[0] = 2.0f;
  for (int step = 0; step < 3; ++step) variables->exchange();
  EXPECT_THAT(variables->parameters(0), ElementsAre(0.0f, -4.25f, 0.0f));  // 1 + 1.5 + 1.75
  EXPECT_THAT(variables->parameters(1), ElementsAre(-8.5f, 0.0f, 0.0f, 0.0f));
}

TEST(LocalVariables, MemoryIsPlacedBeforeItIsTouched) {
  size_t bytes = 0;
  const auto made = LocalVariables::create({{"a", {1000}}}, {.kind = OptimizerKind::adam},
                                           [&](const MemorySpan& memory) { bytes += memory.bytes; });
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_GE(bytes, 4 * 4000u) << "parameters, gradients, two state vectors";
}

TEST(LocalVariables, ATrainerNeedsNoServer) {
  const auto workload = worker::make_workload({.model = "linear", .batch_size = 32, .seed = 3});
  const auto variables = LocalVariables::create((*workload)->schema(), {.learning_rate = 0.1f}, nullptr);
  std::vector<std::string> lines;
  const worker::TrainerOutput output{.line = [&](const std::string& line) { lines.push_back(line); }};
  const absl::Status status =
      worker::train(**variables, **workload, {.epochs = 2, .log_every = 50, .step_line = worker::StepLine::kRate},
                    output, kNeverStop);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_NEAR((*variables)->parameters(0)[0], 2.0f, 0.01f);
  EXPECT_NEAR((*variables)->parameters(1)[0], 10.0f, 0.01f);
  EXPECT_THAT(lines[1],
              MatchesRegex("[0-9-]+ [0-9:.]+: step 100, loss = [0-9.]+ .[0-9.]+ examples/sec; [0-9.]+ sec/batch."));
  EXPECT_THAT(lines, Contains(std::string("Global-Step: 200")));
  EXPECT_THAT(lines, Contains(MatchesRegex("Applied: 200 updates in this process, [0-9.]+us each")));
  EXPECT_THAT(lines, Contains("Parameter-Hash: " + worker::parameter_hash(**variables)));
}

}  // namespace
}  // namespace gradrail::tools
