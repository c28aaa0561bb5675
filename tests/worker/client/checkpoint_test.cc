// A run that is saved, ended and begun again elsewhere continues as if nothing had happened.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/checkpoint/checkpoint.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Adam: its state and its count of updates matter to every later step.
ClientOptions adam(const Cluster& cluster, ModeKind mode) {
  ClientOptions options = cluster.options(0);
  options.mode.kind = mode;
  options.optimizer = {.kind = OptimizerKind::adam, .learning_rate = 0.125f};
  return options;
}

void take_steps(Client& client, uint64_t first, uint64_t last) {
  for (uint64_t step = first; step <= last; ++step) {
    fill_gradients(client, 0, step);
    client.exchange();
    const absl::Status waited = client.wait();
    ASSERT_TRUE(waited.ok()) << waited;
    EXPECT_EQ(client.global_step(), step);
  }
}

std::vector<float> uninterrupted(ModeKind mode, uint64_t steps) {
  Cluster cluster({.worker_count = 1});
  const std::unique_ptr<Client> client = join(adam(cluster, mode), odd_schema());
  if (client == nullptr) return {};
  fill_initial(*client);
  EXPECT_TRUE(client->start().ok());
  take_steps(*client, 1, steps);
  return flatten(*client);
}

struct Shape {
  uint32_t ps_count;
  uint32_t shards_per_ps;
};

void save_after_3_of_7(const TemporaryFolder& folder, ModeKind mode, Shape shape) {
  Cluster cluster({.ps_count = shape.ps_count,
                   .shards_per_ps = shape.shards_per_ps,
                   .worker_count = 1,
                   .checkpoint_dir = folder.path()});
  const std::unique_ptr<Client> client = join(adam(cluster, mode), odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  take_steps(*client, 1, 3);
  const absl::StatusOr<std::vector<std::string>> files = client->checkpoints().save();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->size(), shape.ps_count * shape.shards_per_ps);
  for (const std::string& file : *files) EXPECT_TRUE(std::filesystem::exists(file)) << file;
  take_steps(*client, 4, 4);  // lost with the servers
}

TEST(ClientCheckpoint, GoesOnBitForBitWithAnyNumberOfShards) {
  const Watchdog watchdog;
  for (const ModeKind mode : {ModeKind::async, ModeKind::sync}) {
    const std::vector<float> expected = uninterrupted(mode, 7);
    for (const auto& [before, after] : {std::pair<Shape, Shape>{{1, 1}, {1, 1}}, {{1, 3}, {2, 1}}, {{2, 2}, {1, 1}}}) {
      const TemporaryFolder folder;
      save_after_3_of_7(folder, mode, before);
      Cluster cluster({.ps_count = after.ps_count,
                       .shards_per_ps = after.shards_per_ps,
                       .worker_count = 1,
                       .checkpoint_dir = folder.path()});
      const std::unique_ptr<Client> client = join(adam(cluster, mode), odd_schema());
      ASSERT_NE(client, nullptr);
      // The checkpoint counts, not the values of the chief.
      ASSERT_TRUE(client->start().ok());
      EXPECT_EQ(client->global_step(), 3u);
      take_steps(*client, 4, 7);
      EXPECT_EQ(flatten(*client), expected);
    }
  }
}

TEST(ClientCheckpoint, OtherModelOrOptimizerIsRefused) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  save_after_3_of_7(folder, ModeKind::async, {1, 1});
  Cluster cluster({.worker_count = 1, .checkpoint_dir = folder.path()});
  const absl::Status other_model = Client::join(adam(cluster, ModeKind::async), {{"w", {3}}}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(other_model)) << other_model;
  EXPECT_THAT(std::string(message_of(other_model)), HasSubstr("is of another model"));
  const absl::Status other_optimizer = Client::join(cluster.options(0), odd_schema()).status();
  EXPECT_THAT(std::string(message_of(other_optimizer)), HasSubstr("was trained with optimizer adam"));
  // Neither attempt has spoilt the server.
  EXPECT_NE(join(adam(cluster, ModeKind::async), odd_schema()), nullptr);
}

TEST(ClientCheckpoint, DamagedFileIsRefusedByName) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  save_after_3_of_7(folder, ModeKind::async, {1, 1});
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".ckpt") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-9, std::ios::end);
    file.put('!');
  }
  Cluster cluster({.worker_count = 1, .checkpoint_dir = folder.path()});
  const absl::Status refused = Client::join(adam(cluster, ModeKind::async), odd_schema()).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr(".ckpt"));
}

TEST(ClientCheckpoint, NothingToSaveYet) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  Cluster cluster({.worker_count = 1, .checkpoint_dir = folder.path()});
  const std::unique_ptr<Client> client = join(cluster.options(0), odd_schema());
  ASSERT_NE(client, nullptr);
  const absl::Status refused = client->checkpoints().save().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
}

/// Holds all writes of checkpoints until release().
class HeldDisk {
 public:
  HeldDisk() {
    std::ofstream(hold_).put('h');
    setenv("GRADRAIL_FAILPOINT", ("hold:written:" + hold_).c_str(), 1);
  }
  ~HeldDisk() {
    release();
    unsetenv("GRADRAIL_FAILPOINT");
  }
  HeldDisk(const HeldDisk&) = delete;
  HeldDisk& operator=(const HeldDisk&) = delete;

  void release() { std::filesystem::remove(hold_); }

 private:
  const TemporaryFolder folder_;
  const std::string hold_ = folder_.path() + "/hold";
};

TEST(ClientCheckpoint, StepsGoOnWhileItIsWritten) {
  const Watchdog watchdog;
  for (const ModeKind mode : {ModeKind::async, ModeKind::sync}) {
    const TemporaryFolder folder;
    std::vector<float> saved;
    {
      Cluster cluster({.ps_count = 2, .shards_per_ps = 2, .worker_count = 1, .checkpoint_dir = folder.path()});
      const std::unique_ptr<Client> client = join(adam(cluster, mode), odd_schema());
      ASSERT_NE(client, nullptr);
      ASSERT_TRUE(client->start().ok());
      take_steps(*client, 1, 3);
      saved = flatten(*client);
      HeldDisk disk;
      const absl::Status begun = client->checkpoints().begin();
      ASSERT_TRUE(begun.ok()) << begun;
      take_steps(*client, 4, 8);
      EXPECT_TRUE(client->checkpoints().is_under_way());
      EXPECT_FALSE(ps::newest_checkpoint(folder.path()).ok());
      EXPECT_TRUE(absl::IsFailedPrecondition(client->checkpoints().begin())) << "one at a time";
      disk.release();
      const absl::StatusOr<std::vector<std::string>> files = client->checkpoints().finish();
      ASSERT_TRUE(files.ok()) << files.status();
      EXPECT_EQ(files->size(), 4u);
      EXPECT_FALSE(client->checkpoints().is_under_way());
      EXPECT_TRUE(client->checkpoints().finish()->empty()) << "reported once";
    }
    const absl::StatusOr<ps::Checkpoint> read = ps::read_checkpoint_set(folder.path(), 3);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->parameters, saved) << "of the moment when it was begun";
  }
}

TEST(ClientCheckpoint, AWorkerThatGoesLeavesAWholeSet) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  {
    Cluster cluster({.ps_count = 2, .worker_count = 1, .checkpoint_dir = folder.path()});
    HeldDisk disk;
    std::jthread later;
    const std::unique_ptr<Client> client = join(cluster.options(0), odd_schema());
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(client->start().ok());
    ASSERT_TRUE(client->checkpoints().begin().ok());
    later = std::jthread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the worker has begun to go
      disk.release();
    });
  }
  EXPECT_TRUE(ps::newest_checkpoint(folder.path()).ok()) << ps::newest_checkpoint(folder.path()).status();
}

TEST(ClientCheckpoint, AFailedWriteIsReported) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  const std::string below = folder.path() + "/below";
  Cluster cluster({.ps_count = 2, .worker_count = 1, .checkpoint_dir = below});
  const std::unique_ptr<Client> client = join(cluster.options(0), odd_schema());
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->start().ok());
  std::filesystem::rename(below, folder.path() + "/away");
  ASSERT_TRUE(client->checkpoints().begin().ok());
  const absl::Status failed = client->checkpoints().finish().status();
  EXPECT_THAT(std::string(message_of(failed)), AllOf(HasSubstr("parameter server 0"), HasSubstr(below + "/gradrail-")));
  std::filesystem::rename(folder.path() + "/away", below);
  EXPECT_TRUE(client->checkpoints().save().ok()) << "the next one is another matter";
}

/// With several ps tasks the updates of others arrive between one task's snapshot and the next: the files must still be
/// one set.
TEST(ClientCheckpoint, SavedWhileOthersTrainIsAWholeSet) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  {
    Cluster cluster({.ps_count = 2, .shards_per_ps = 2, .worker_count = 2, .checkpoint_dir = folder.path()});
    std::atomic<bool> saved = false;
    std::atomic<uint64_t> updates = 0;
    in_parallel(2, [&](uint32_t task) {
      const std::unique_ptr<Client> client = join(cluster.options(task), odd_schema());
      ASSERT_NE(client, nullptr);
      ASSERT_TRUE(client->start().ok());
      for (uint64_t step = 1; task == 1 && !saved; ++step) {
        fill_gradients(*client, task, step);
        client->exchange();
        ASSERT_TRUE(client->wait().ok());
        ++updates;
      }
      if (task == 1) return;
      // Each save is a race between two tasks' snapshots and the updates: several make one that is torn likely.
      for (int i = 0; i < 5; ++i) {
        const uint64_t before = updates;
        EXPECT_TRUE(eventually([&] { return updates > before + 1; }));
        const absl::StatusOr<std::vector<std::string>> files = client->checkpoints().save();
        EXPECT_TRUE(files.ok()) << files.status();
        const size_t step_end = folder.path().size() + std::string("/gradrail-123456789012").size();
        for (const std::string& file : *files) EXPECT_EQ(file.substr(0, step_end), files->front().substr(0, step_end));
        const absl::StatusOr<uint64_t> newest = ps::newest_checkpoint(folder.path());
        EXPECT_TRUE(newest.ok()) << newest.status();
      }
      saved = true;
    });
  }
  Cluster cluster({.worker_count = 2, .checkpoint_dir = folder.path()});
  const std::unique_ptr<Client> client = join(cluster.options(0), odd_schema());
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(client->start().ok());
  EXPECT_GT(client->global_step(), 0u);
}

}  // namespace
}  // namespace gradrail::worker
