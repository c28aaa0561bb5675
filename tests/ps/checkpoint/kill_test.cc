// Kills the process (SIGKILL) at each failpoint of a save, at each pass. Afterwards the committed checkpoints are
// complete, bit for bit, and the next save removes the partial files.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "base/failpoint.h"
#include "fmt/format.h"
#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/retention.h"
#include "ps/checkpoint/set.h"
#include "ps/checkpoint/writer.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::ps {
namespace {

constexpr uint32_t kShards = 2;
constexpr uint32_t kKeep = 2;
constexpr uint64_t kElements = 300'000;  // a chunk and a bit: several writes
constexpr auto kSaveTimeout = std::chrono::minutes(1);

std::vector<Checkpoint> model_at(uint64_t step) {
  const ShardMap map = ShardMap::cut(kElements, kShards, 256).value();
  std::vector<Checkpoint> shards;
  for (uint32_t i = 0; i < kShards; ++i) {
    shards.push_back(make_checkpoint(OptimizerKind::momentum, map.shard(i), kElements, step * kShards + i));
    shards.back().header.global_step = step;
    shards.back().header.saved_us = step;
    shards.back().header.shard_index = i;
    shards.back().header.shard_count = kShards;
  }
  return shards;
}

/// Saves in the same way as a ps task.
bool save(const std::string& folder, uint64_t step) {
  const SavedSet set = {.global_step = step, .saved_us = step};
  CheckpointWriter writer(folder);
  writer.write(set, model_at(step));
  const std::optional<absl::Status> written = writer.outcome(set, kSaveTimeout);
  return written.has_value() && written->ok() && remove_older_sets(folder, set, kKeep).ok();
}

/// Saves step 300 in a process that is killed there; false when it came to its end.
bool is_killed(const std::string& folder, const std::string& place) {
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    setenv("GRADRAIL_FAILPOINT", place.c_str(), 1);
    _exit(save(folder, 300) ? 0 : 1);
  }
  int wait_status = 0;
  EXPECT_EQ(waitpid(child, &wait_status, 0), child);
  if (WIFSIGNALED(wait_status)) {
    EXPECT_EQ(WTERMSIG(wait_status), SIGKILL) << place;
    return true;
  }
  EXPECT_EQ(WEXITSTATUS(wait_status), 0) << place;
  return false;
}

std::vector<float> parameters_at(uint64_t step) {
  std::vector<float> whole;
  for (const Checkpoint& shard : model_at(step)) {
    whole.insert(whole.end(), shard.parameters.begin(), shard.parameters.end());
  }
  return whole;
}

void expect_whole(const std::string& folder, uint64_t step) {
  const absl::StatusOr<Checkpoint> read = read_checkpoint_set(folder, step);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->parameters, parameters_at(step)) << step;
}

/// Kills at one place, the first, second, … time, in a fresh folder each; returns how often there was something to
/// kill.
int kill_each_time(std::string_view place) {
  for (int times = 1;; ++times) {
    SCOPED_TRACE(fmt::format("{}:{}", place, times));
    const TemporaryFolder folder;
    EXPECT_TRUE(save(folder.path(), 100) && save(folder.path(), 200));
    const bool killed = is_killed(folder.path(), fmt::format("kill:{}:{}", place, times));
    expect_whole(folder.path(), 200);
    const absl::StatusOr<Checkpoint> newest = read_newest_set(folder.path());
    EXPECT_TRUE(newest.ok()) << newest.status();
    const uint64_t restored = newest.ok() ? newest->header.global_step : 0;
    expect_whole(folder.path(), restored);
    // A removal begins when all is there.
    const bool removing = place.starts_with("remove");
    EXPECT_TRUE(restored == 300 || (killed && !removing));
    EXPECT_TRUE(removing || !killed || read_checkpoint_set(folder.path(), 100).ok()) << "removed too early";
    EXPECT_TRUE(save(folder.path(), 400));
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
    EXPECT_EQ(files, kKeep * kShards) << "the next save leaves no trace of the one that was killed";
    if (!killed || ::testing::Test::HasFailure()) return times - 1;
  }
}

TEST(CheckpointKill, NothingCommittedIsLostWhereverTheWriterIsKilled) {
  std::map<std::string_view, int> expected = {{"write", 2 * (3 + 2 * 2)}, {"remove", 2}, {"removed", 2}};
  for (const std::string_view place : kFailpoints) {
    const int kills = kill_each_time(place);
    const auto known = expected.find(place);
    EXPECT_EQ(kills, known == expected.end() ? static_cast<int>(kShards) : known->second) << place;
  }
}

}  // namespace
}  // namespace gradrail::ps
