#include "ps/checkpoint/retention.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <limits>

#include "base/status.h"
#include "ps/checkpoint/set.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Retention goes by names. A file without a header counts as one without NaN.
void put(const TemporaryFolder& folder, uint64_t step, uint64_t saved_us, uint32_t shards, uint32_t there) {
  for (uint32_t i = 0; i < there; ++i) write_bytes(folder.file(checkpoint_file_name(step, saved_us, i, shards)), "x");
}
void put(const TemporaryFolder& folder, uint64_t step, uint32_t shards = 2) { put(folder, step, step, shards, shards); }

std::vector<uint64_t> steps(const TemporaryFolder& folder) {
  std::vector<uint64_t> found;
  const auto sets = list_checkpoint_sets(folder.path());
  for (const CheckpointSet& set : *sets) found.push_back(set.global_step);
  return found;
}

size_t removed(const TemporaryFolder& folder, const SavedSet& completed, uint32_t keep) {
  const absl::StatusOr<RemovedSets> sets = remove_older_sets(folder.path(), completed, keep);
  EXPECT_TRUE(sets.ok()) << sets.status();
  return sets.value_or(RemovedSets()).files;
}

/// A set of two shards with parameters of the model, of which the second shard has this one.
void write_set(const TemporaryFolder& folder, uint64_t step, float parameter) {
  for (uint32_t shard = 0; shard < 2; ++shard) {
    Checkpoint checkpoint = make_checkpoint(OptimizerKind::sgd, {.first = shard * 10, .count = 10 + shard}, 21, step);
    checkpoint.header.global_step = checkpoint.header.saved_us = step;
    checkpoint.header.shard_index = shard;
    checkpoint.header.shard_count = 2;
    checkpoint.parameters[shard * 7] = shard == 0 ? 1.0f : parameter;
    ASSERT_TRUE(write_checkpoint(folder.file(checkpoint_file_name(step, step, shard, 2)), view(checkpoint)).ok());
  }
}

TEST(CheckpointRetention, TheLastFewCompleteSetsStay) {
  const TemporaryFolder folder;
  for (const uint64_t step : {100, 200, 300, 400}) put(folder, step);
  EXPECT_EQ(removed(folder, {400, 400}, 0), 0u) << "0: all stay";
  EXPECT_EQ(removed(folder, {400, 400}, 9), 0u);
  EXPECT_EQ(removed(folder, {400, 400}, 3), 2u);
  EXPECT_THAT(steps(folder), ElementsAre(400, 300, 200));
  EXPECT_EQ(removed(folder, {400, 400}, 1), 4u);
  EXPECT_THAT(steps(folder), ElementsAre(400));
}

TEST(CheckpointRetention, HalvesAreNotCountedAndGo) {
  const TemporaryFolder folder;
  put(folder, 100);
  put(folder, 200, 200, 2, 1);
  put(folder, 300);
  put(folder, 400, 400, 2, 1);
  put(folder, 500);
  EXPECT_EQ(removed(folder, {500, 500}, 3), 2u);
  EXPECT_THAT(steps(folder), ElementsAre(500, 300, 100));
}

/// A run saves its last step twice when this step is also a periodic save.
TEST(CheckpointRetention, AStepThatWasSavedTwiceCountsOnce) {
  const TemporaryFolder folder;
  put(folder, 100);
  put(folder, 200);
  put(folder, 300);
  put(folder, 300, 301, 2, 2);
  EXPECT_EQ(removed(folder, {300, 301}, 2), 4u);
  EXPECT_THAT(steps(folder), ElementsAre(300, 200));
}

TEST(CheckpointRetention, NothingGoesBeforeTheNewSetIsComplete) {
  const TemporaryFolder folder;
  put(folder, 100);
  put(folder, 200);
  put(folder, 300, 300, 2, 1);
  EXPECT_EQ(removed(folder, {300, 300}, 1), 0u);
  EXPECT_EQ(removed(folder, {300, 299}, 1), 0u) << "another save of the step";
  EXPECT_THAT(steps(folder), ElementsAre(300, 200, 100));
}

/// A set was damaged, the run went back and has not come so far again.
TEST(CheckpointRetention, LaterStepsOfARunThatWentBackStay) {
  const TemporaryFolder folder;
  put(folder, 300);
  put(folder, 600);
  put(folder, 700, 700, 2, 1);
  put(folder, 350, 1000, 2, 2);
  EXPECT_EQ(removed(folder, {350, 1000}, 1), 3u);
  EXPECT_THAT(steps(folder), ElementsAre(600, 350)) << "but not the half of 700";
  put(folder, 600, 1001, 2, 2);  // there again
  EXPECT_EQ(removed(folder, {600, 1001}, 1), 4u);
  EXPECT_THAT(steps(folder), ElementsAre(600));
}

/// A run that had diverged removed its last good set.
TEST(CheckpointRetention, TheLastSetWithoutNanStaysBehindThoseWithIt) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const TemporaryFolder folder;
  write_set(folder, 100, 1);
  write_set(folder, 200, 2);
  write_set(folder, 300, nan);
  const auto remove = [&](uint64_t step) { return *remove_older_sets(folder.path(), {step, step}, 2); };
  RemovedSets removed = remove(300);
  EXPECT_EQ(removed.files, 2u);
  EXPECT_EQ(removed.finite_step, std::nullopt) << "200 is one of the newest two";
  for (const uint64_t step : {400, 500, 600}) {
    write_set(folder, step, step == 500 ? -infinity : nan);
    removed = remove(step);
    EXPECT_EQ(removed.files, step == 400 ? 0u : 2u);
    EXPECT_EQ(removed.finite_step, 200u);
    EXPECT_THAT(steps(folder), ElementsAre(step, step - 100, 200));
  }
  write_set(folder, 700, 7);  // the run has returned to good values
  removed = remove(700);
  EXPECT_EQ(removed.finite_step, std::nullopt);
  EXPECT_THAT(steps(folder), ElementsAre(700, 600));
}

TEST(CheckpointRetention, OnlyOldUnfinishedFilesAndOnlyOursGo) {
  const TemporaryFolder folder;
  put(folder, 200);
  const std::string stale = folder.file(checkpoint_file_name(150, 150, 0, 2) + ".tmp");
  const std::string ahead = folder.file(checkpoint_file_name(900, 150, 0, 2) + ".tmp");
  const std::string being_written = folder.file(checkpoint_file_name(300, 300, 0, 2) + ".tmp");
  const std::string foreign = folder.file("notes.tmp");
  for (const std::string& path : {stale, ahead, being_written, foreign}) write_bytes(path, "x");
  EXPECT_EQ(removed(folder, {200, 200}, 5), 2u);
  EXPECT_FALSE(std::filesystem::exists(stale));
  EXPECT_FALSE(std::filesystem::exists(ahead)) << "of a run that went back";
  EXPECT_TRUE(std::filesystem::exists(being_written));
  EXPECT_TRUE(std::filesystem::exists(foreign));
}

TEST(CheckpointRetention, WhatIsBeingSavedStays) {
  const TemporaryFolder folder;
  put(folder, 200);
  put(folder, 200, 300, 2, 1);  // the same step once more
  put(folder, 300, 300, 2, 1);
  EXPECT_EQ(removed(folder, {200, 200}, 1), 0u);
}

TEST(CheckpointRetention, NoFolder) {
  const TemporaryFolder folder;
  EXPECT_TRUE(absl::IsNotFound(remove_older_sets(folder.file("none"), {1, 1}, 1).status()));
  EXPECT_THAT(steps(folder), IsEmpty());
}

}  // namespace
}  // namespace gradrail::ps
