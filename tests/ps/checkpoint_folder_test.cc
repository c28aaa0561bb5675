#include "ps/checkpoint_folder.h"

#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "base/status.h"
#include "tests/ps/checkpoint_files.h"

namespace gradrail::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string words(const absl::Status& status) { return std::string(message_of(status)); }

/// A set of `shard_count` files of which those in `missing` are not there.
Checkpoint write_set(const TemporaryFolder& folder, uint64_t step, uint32_t shard_count,
                     const std::set<uint32_t>& missing = {}) {
  constexpr uint64_t kElements = 100;
  const ShardMap map = ShardMap::cut(kElements, shard_count, 256).value();
  Checkpoint last;
  for (uint32_t i = 0; i < shard_count; ++i) {
    last = make_checkpoint(OptimizerKind::sgd, map.shard(i), kElements, i);
    last.header.global_step = step;
    last.header.shard_index = i;
    last.header.shard_count = shard_count;
    if (missing.contains(i)) continue;
    const std::string path = folder.file(checkpoint_file_name(step, i, shard_count));
    EXPECT_TRUE(write_checkpoint(path, view(last)).ok());
  }
  return last;
}

TEST(CheckpointFolder, TasksThatShareItAgreeOnItsIdentity) {
  for (int repetition = 0; repetition < 20; ++repetition) {
    const TemporaryFolder folder;
    std::string identities[8];
    std::vector<std::thread> tasks;
    for (std::string& identity : identities) {
      tasks.emplace_back([&] { identity = prepare_checkpoint_folder(folder.file("below")).value_or("none"); });
    }
    for (std::thread& task : tasks) task.join();
    EXPECT_EQ(identities[0].size(), 32u) << identities[0];
    EXPECT_EQ(std::set<std::string>(std::begin(identities), std::end(identities)).size(), 1u);
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.file("below"))) ++files;
    EXPECT_EQ(files, 1u) << "what the slower ones wrote is gone";
  }
}

TEST(CheckpointFolder, TwoFoldersAreNotOne) {
  const TemporaryFolder folder;
  EXPECT_NE(prepare_checkpoint_folder(folder.file("a")).value(), prepare_checkpoint_folder(folder.file("b")).value());
  EXPECT_EQ(prepare_checkpoint_folder(folder.file("a")).value(), prepare_checkpoint_folder(folder.file("a")).value());
}

TEST(CheckpointFolder, AnEmptyIdentityIsNamed) {
  const TemporaryFolder folder;
  write_bytes(folder.file("gradrail-folder"), "");
  const absl::Status refused = prepare_checkpoint_folder(folder.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(words(refused), AllOf(HasSubstr(folder.file("gradrail-folder")), HasSubstr("remove it")));
}

TEST(CheckpointFolder, WithoutSetsNothingIsRestored) {
  const TemporaryFolder folder;
  ASSERT_TRUE(prepare_checkpoint_folder(folder.path()).ok());
  const auto restored = restore_newest(folder.path(), {{"w", {1}}}, OptimizerKind::sgd);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(*restored, nullptr);
}

TEST(CheckpointFolder, TheNewestWholeSetIsRestored) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 100, 2);
  write_set(folder, 50, 1);
  write_set(folder, 200, 3, {1});
  const auto restored = restore_newest(folder.path(), saved.header.schema, OptimizerKind::sgd);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ((*restored)->header.global_step, 100u);
}

TEST(CheckpointFolder, HalfASetIsAnErrorThatNamesTheOtherHalf) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 300, 2, {1});
  const absl::Status refused = restore_newest(folder.path(), saved.header.schema, OptimizerKind::sgd).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(words(refused), AllOf(HasSubstr(folder.path()), HasSubstr("step 300 is incomplete"),
                                    HasSubstr("missing 1"), HasSubstr("one shared folder")));
}

TEST(CheckpointFolder, ADamagedSetNamesTheOlderOnes) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 300, 1);
  const std::string newest = folder.file(checkpoint_file_name(300, 0, 1));
  write_bytes(newest, read_bytes(newest).substr(0, 200));
  const auto restore = [&] { return restore_newest(folder.path(), saved.header.schema, OptimizerKind::sgd).status(); };
  EXPECT_TRUE(absl::IsDataLoss(restore())) << restore();
  EXPECT_THAT(words(restore()),
              AllOf(HasSubstr(newest), HasSubstr("no older one; to begin anew, move the files of step 300")));
  for (uint64_t step = 1; step <= 6; ++step) write_set(folder, step, 1);
  EXPECT_THAT(words(restore()), AllOf(HasSubstr("older complete sets: step 6, 5, 4, 3, …"),
                                      HasSubstr("to go on from step 6, move the files of step 300")));
}

TEST(CheckpointFolder, OtherModelOrOptimizerIsRefused) {
  const TemporaryFolder folder;
  const Checkpoint saved = write_set(folder, 300, 1);
  EXPECT_THAT(words(restore_newest(folder.path(), {{"w", {1}}}, OptimizerKind::sgd).status()),
              HasSubstr("is of another model"));
  EXPECT_THAT(words(restore_newest(folder.path(), saved.header.schema, OptimizerKind::adam).status()),
              HasSubstr("was trained with optimizer sgd, this run asks for adam"));
}

}  // namespace
}  // namespace gradrail::ps
