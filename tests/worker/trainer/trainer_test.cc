#include "worker/trainer/trainer.h"

#include <filesystem>
#include <future>

#include "ps/checkpoint/set.h"
#include "tests/base/captured_log.h"
#include "tests/worker/client/cluster.h"
#include "worker/models/workload.h"

namespace gradrail::worker {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

const std::atomic<bool> kNeverStop = false;

struct Outcome {
  absl::Status status;
  std::vector<std::string> lines;
  uint64_t progress_count = 0;
  std::vector<float> parameters;
};

Outcome run(const Cluster& cluster, ModeKind mode, TrainerOptions options, const std::atomic<bool>& stop,
            const std::function<void(const Progress&, Client&)>& watch = {}, uint32_t task = 0) {
  Outcome outcome;
  ClientOptions client_options = cluster.options(task);
  client_options.mode.kind = mode;
  client_options.optimizer.learning_rate = 0.1f;
  auto workload = make_workload({.model = "linear", .batch_size = 32, .seed = 3, .task_index = task});
  EXPECT_TRUE(workload.ok()) << workload.status();
  const std::unique_ptr<Client> client = join(client_options, (*workload)->schema());
  if (client == nullptr) return outcome;
  outcome.status = train(*client, **workload, options,
                         {.line = [&](const std::string& line) { outcome.lines.push_back(line); },
                          .progress =
                              [&](const Progress& progress) {
                                ++outcome.progress_count;
                                if (watch) watch(progress, *client);
                              }},
                         stop);
  outcome.parameters = flatten(*client);
  return outcome;
}

std::string hash_of(const Outcome& outcome) {
  for (const std::string& line : outcome.lines) {
    if (line.starts_with("Parameter-Hash: ")) return line;
  }
  return "";
}

TEST(Trainer, LearnsTheLineAndSpeaksLikeTheTutorials) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  const Outcome outcome = run(cluster, ModeKind::async, {.epochs = 2, .log_every = 50}, kNeverStop);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_NEAR(outcome.parameters[0], 2.0f, 0.01f);
  EXPECT_NEAR(outcome.parameters[1], 10.0f, 0.01f);
  ASSERT_GE(outcome.lines.size(), 5u);
  EXPECT_EQ(outcome.lines[0], "Variables initialized ...");
  EXPECT_THAT(outcome.lines[1],
              MatchesRegex("Step: 51,  Epoch:  1,  Batch:  50 of 100,  Cost: [0-9.]+,  AvgTime: [0-9.]+ms"));
  EXPECT_THAT(outcome.lines[4], StartsWith("Step: 201,  Epoch:  2,  Batch: 100 of 100,"));
  EXPECT_THAT(outcome.lines, Contains(MatchesRegex("Total Time: [0-9.]+s")));
  EXPECT_THAT(outcome.lines, Contains(StartsWith("Final Cost: 0.0")));
  EXPECT_THAT(outcome.lines, Contains(std::string("Global-Step: 200")));
  EXPECT_THAT(outcome.lines, Contains(StartsWith("Exchange: 200 exchanges,")));
  EXPECT_THAT(outcome.lines, Contains(std::string("Staleness: mean 0.00, max 0 updates (0: 200)")));
  EXPECT_THAT(outcome.lines, Contains(AllOf(StartsWith("Path: shard 0 at "), HasSubstr("shm"))));
  EXPECT_THAT(outcome.lines, Contains(MatchesRegex("Parameter-Hash: [0-9a-f]+")));
  EXPECT_EQ(outcome.lines.back(), "done");
  EXPECT_EQ(outcome.progress_count, 200u);
  EXPECT_TRUE(cluster.outcome(0).ok()) << "the worker has left";
}

TEST(Trainer, TheRateFormSaysHowLongItHasTrained) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  const Outcome outcome = run(cluster, ModeKind::async, {.epochs = 2, .step_line = StepLine::kRate}, kNeverStop);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.lines[0], HasSubstr(": step 100, loss = "));
  EXPECT_EQ(outcome.lines[2], "Done training for 2 epochs, 200 steps.");
  EXPECT_THAT(outcome.lines, Not(Contains(std::string("done"))));
}

TEST(Trainer, SyncWorkersEndWithTheSameParametersEveryTime) {
  const Watchdog watchdog;
  std::string first_hash;
  for (int repetition = 0; repetition < 2; ++repetition) {
    Cluster cluster({.ps_count = 2, .worker_count = 2});
    Outcome outcomes[2];
    in_parallel(
        2, [&](uint32_t task) { outcomes[task] = run(cluster, ModeKind::sync, {.epochs = 1}, kNeverStop, {}, task); });
    for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcomes[0].parameters, outcomes[1].parameters);
    EXPECT_THAT(outcomes[1].lines, Not(Contains(StartsWith("Parameter-Hash"))));
    EXPECT_NE(hash_of(outcomes[0]), "");
    if (repetition == 0) first_hash = hash_of(outcomes[0]);
    EXPECT_EQ(hash_of(outcomes[0]), first_hash);
  }
}

TEST(Trainer, StopEndsAfterTheStepUnderWayAndLeaves) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  std::atomic<bool> stop = false;
  const Outcome outcome =
      run(cluster, ModeKind::async, {.epochs = 100'000}, stop, [&](const Progress& progress, Client&) {
        if (progress.global_step == 30) stop = true;
      });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.progress_count, 30u);
  EXPECT_THAT(outcome.lines, Contains(std::string("Stopped after 30 steps of this worker")));
  EXPECT_NE(outcome.lines.back(), "done") << "the training is not done";
  EXPECT_TRUE(cluster.outcome(0).ok());
}

TEST(Trainer, StopBeforeTheFirstStepSaysThatNothingWasTrained) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  const std::atomic<bool> stop = true;
  const Outcome outcome = run(cluster, ModeKind::async, {.epochs = 1}, stop);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.progress_count, 0u);
  EXPECT_THAT(outcome.lines, Contains(std::string("Stopped before the first step: nothing was trained")));
}

/// A save that comes due while one is being written is put off: such a step waits for the write.
void finish_save(Client& client) {
  EXPECT_TRUE(eventually([&] { return !client.checkpoints().is_under_way(); }));
}

std::vector<uint64_t> saved_steps(const std::string& folder) {
  std::vector<uint64_t> steps;
  const auto sets = ps::list_checkpoint_sets(folder);
  EXPECT_TRUE(sets.ok()) << sets.status();
  for (const ps::CheckpointSet& set : sets.value_or(std::vector<ps::CheckpointSet>{})) steps.push_back(set.global_step);
  return steps;
}
std::vector<uint64_t> saved_steps(const TemporaryFolder& folder) { return saved_steps(folder.path()); }

TEST(Trainer, ChiefSavesOnItsWayAndAtTheEnd) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  Cluster cluster({.worker_count = 1, .checkpoint_dir = folder.path()});
  const Outcome outcome = run(cluster, ModeKind::async, {.epochs = 1, .save_every = {.steps = 40}}, kNeverStop,
                              [&](const Progress& progress, Client& client) {
                                if (progress.global_step % 40 == 39) finish_save(client);
                              });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(saved_steps(folder), ElementsAre(100, 80, 40));
}

TEST(Trainer, TheLastStepIsSavedOnce) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  Cluster cluster({.ps_count = 2, .worker_count = 1, .checkpoint_dir = folder.path()});
  const Outcome outcome = run(cluster, ModeKind::async, {.epochs = 1, .save_every = {.steps = 100}}, kNeverStop);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(saved_steps(folder), ElementsAre(100));
}

TEST(Trainer, TheLastStepIsSavedAgainWithTheUpdatesOfOtherWorkers) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  Cluster cluster({.worker_count = 2, .checkpoint_dir = folder.path()});
  std::promise<void> half_done, chief_has_saved;
  in_parallel(2, [&](uint32_t task) {
    const Outcome outcome = run(
        cluster, ModeKind::async, {.epochs = 1, .save_every = {.steps = 100}}, kNeverStop,
        [&](const Progress& progress, Client&) {
          if (task == 0 && progress.batch == 99) half_done.get_future().wait();
          if (task == 0 && progress.batch == 100) chief_has_saved.set_value();
          if (task == 1 && progress.batch == 50) half_done.set_value();
          if (task == 1 && progress.batch == 50) chief_has_saved.get_future().wait();
        },
        task);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  });
  EXPECT_THAT(saved_steps(folder), ElementsAre(200, 150));
}

TEST(Trainer, ChiefSavesByTheClock) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  Cluster cluster({.worker_count = 1, .checkpoint_dir = folder.path()});
  const SaveEvery every = {.time = std::chrono::milliseconds(100)};
  const Outcome outcome = run(cluster, ModeKind::async, {.epochs = 1, .save_every = every}, kNeverStop,
                              [&](const Progress& progress, Client&) {
                                // No event exists: the clock is under test.
                                if (progress.global_step == 10) std::this_thread::sleep_for(every.time);
                              });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(saved_steps(folder), AllOf(Contains(100), SizeIs(Ge(2)))) << "at step 11 at the latest one was due";
}

/// Nothing is lost by a disk that is full for a while: the run continues, and ends well when its last save succeeds.
TEST(Trainer, ASaveThatFailsOnTheWayDoesNotEndTheRun) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  const CapturedLog log(LogLevel::warn);
  Cluster cluster({.worker_count = 1, .checkpoint_dir = folder.path() + "/below"});
  const std::filesystem::path below = folder.path() + "/below";
  const Outcome outcome = run(cluster, ModeKind::async, {.epochs = 1, .save_every = {.steps = 40}}, kNeverStop,
                              [&](const Progress& progress, Client& client) {
                                if (progress.global_step == 30) std::filesystem::rename(below, folder.path() + "/away");
                                if (progress.global_step == 79) finish_save(client);
                                if (progress.global_step == 79) std::filesystem::rename(folder.path() + "/away", below);
                              });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(saved_steps(below.string()), ElementsAre(100, 80));
  EXPECT_THAT(log.text(), HasSubstr("a checkpoint failed, training continues: "));
}

TEST(Trainer, ALastSaveThatFailsIsTheRunsError) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  Cluster cluster({.worker_count = 1, .checkpoint_dir = folder.path() + "/below"});
  const Outcome outcome =
      run(cluster, ModeKind::async, {.epochs = 1}, kNeverStop, [&](const Progress& progress, Client&) {
        if (progress.global_step == 30) std::filesystem::rename(folder.path() + "/below", folder.path() + "/away");
      });
  EXPECT_FALSE(outcome.status.ok());
  EXPECT_THAT(std::string(outcome.status.message()), AllOf(HasSubstr("below/gradrail-"), HasSubstr("No such file")));
}

TEST(Trainer, ServerThatGoesEndsTheRunWithItsError) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  std::thread stopper;
  const Outcome outcome =
      run(cluster, ModeKind::async, {.epochs = 100'000}, kNeverStop, [&](const Progress& progress, Client&) {
        if (progress.global_step == 30) stopper = std::thread([&] { cluster.stop(0); });
      });
  stopper.join();
  EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
}

/// Linear, until its device is lost in mid-step.
class LosesItsDevice final : public Workload {
 public:
  explicit LosesItsDevice(int at) : left_(at) {}
  const Schema& schema() const override { return linear_->schema(); }
  void initialise(uint64_t seed, Gradients parameters) const override { linear_->initialise(seed, parameters); }
  size_t batches_per_epoch() const override { return linear_->batches_per_epoch(); }
  size_t batch_size() const override { return linear_->batch_size(); }
  void seek(uint64_t step) override { linear_->seek(step); }
  void prefetch() override { linear_->prefetch(); }
  absl::StatusOr<float> step(Parameters parameters, Gradients gradients, const GradientReady& ready) override {
    if (left_-- > 0) return linear_->step(parameters, gradients, ready);
    ready(1);
    return absl::UnavailableError("GPU 3: CUDA_ERROR_LOST: see dmesg");
  }
  absl::StatusOr<Verdict> verdict(Parameters parameters) override { return linear_->verdict(parameters); }
  void release_memory() override { ++released; }
  int released = 0;

 private:
  int left_;
  std::unique_ptr<Workload> linear_ = *make_workload({.model = "linear", .batch_size = 32, .task_index = 1});
};

TEST(Trainer, ALostDeviceIsReportedAndTheOthersGoOn) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2});
  LosesItsDevice unlucky(20);
  absl::Status status;
  Outcome chief;
  std::promise<void> loss;
  in_parallel(2, [&](uint32_t task) {
    if (task == 0) {
      // The chief makes its steps after the loss. A gradient of the other worker may be old and spoil the result.
      const std::shared_future<void> is_lost = loss.get_future().share();
      chief =
          run(cluster, ModeKind::async, {.epochs = 5}, kNeverStop, [&](const Progress&, Client&) { is_lost.wait(); });
      return;
    }
    ClientOptions options = cluster.options(task);
    options.optimizer.learning_rate = 0.1f;
    const std::unique_ptr<Client> client = join(options, unlucky.schema());
    if (client != nullptr) status = train(*client, unlucky, {.epochs = 5}, {}, kNeverStop);
    loss.set_value();
    EXPECT_EQ(unlucky.released, 1) << "its memory is about to go";
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("the model failed after 20 steps of this worker: GPU 3: CUDA_ERROR_LOST"));
  EXPECT_TRUE(chief.status.ok()) << chief.status;
  EXPECT_NEAR(chief.parameters[0], 2.0f, 0.01f);
  EXPECT_TRUE(cluster.outcome(0).ok());
}

TEST(Trainer, HashIsTheSha256OfTheParameters) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  const std::unique_ptr<Client> client = join(cluster.options(0), {{"a", {2}}, {"b", {1}}});
  ASSERT_NE(client, nullptr);
  client->parameters(0)[0] = 1.0f;
  client->parameters(0)[1] = 2.0f;
  client->parameters(1)[0] = -0.5f;
  // printf '\0\0\x80\x3f\0\0\0\x40\0\0\0\xbf' | sha256sum
  EXPECT_EQ(parameter_hash(*client), "1ffe038578726b0db1430093131187306c7d4859c5dfbbabac87a9637825787c");
}

}  // namespace
}  // namespace gradrail::worker
