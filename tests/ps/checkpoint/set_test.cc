#include <filesystem>

#include "gmock/gmock.h"
#include "ps/checkpoint/checkpoint.h"
#include "tests/ps/checkpoint/checkpoint_files.h"

namespace gradrail::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string message(const absl::Status& status) { return std::string(status.message()); }

/// The part of `whole` that a shard holds.
Checkpoint cut(const Checkpoint& whole, const ShardMap& map, uint32_t shard_index) {
  Checkpoint part;
  part.header = whole.header;
  part.header.range = map.shard(shard_index);
  part.header.shard_index = shard_index;
  part.header.shard_count = map.shard_count();
  const auto piece = [&](const std::vector<float>& values) {
    const auto first = values.begin() + static_cast<ptrdiff_t>(part.header.range.first);
    return std::vector<float>(first, first + static_cast<ptrdiff_t>(part.header.range.count));
  };
  part.parameters = piece(whole.parameters);
  for (const auto& state : whole.state) part.state.push_back(piece(state));
  return part;
}

Checkpoint model(uint64_t elements, uint64_t step = 42, OptimizerKind kind = OptimizerKind::adam) {
  Checkpoint whole = make_checkpoint(kind, {0, elements}, elements, elements + step);
  whole.header.global_step = step;
  whole.header.bucket_versions = {step};
  return whole;
}

std::string shard_file(const TemporaryFolder& folder, const Checkpoint& part) {
  const CheckpointHeader& header = part.header;
  return folder.file(checkpoint_file_name(header.global_step, header.saved_us, header.shard_index, header.shard_count));
}

void write_set(const TemporaryFolder& folder, const Checkpoint& whole, uint32_t shard_count) {
  const ShardMap map = ShardMap::cut(whole.header.range.count, shard_count, 256).value();
  for (uint32_t i = 0; i < shard_count; ++i) {
    const Checkpoint part = cut(whole, map, i);
    ASSERT_TRUE(write_checkpoint(shard_file(folder, part), view(part)).ok());
  }
}

TEST(CheckpointSet, RoundTripsOverAnyNumberOfShards) {
  for (const uint64_t elements : {2, 17, 33, 1000, 300'001}) {
    for (const uint32_t shard_count : {1, 2, 3, 5}) {  // with few elements some are empty
      for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::nesterov, OptimizerKind::adam}) {
        const TemporaryFolder folder;
        const Checkpoint whole = model(elements, 42, kind);
        write_set(folder, whole, shard_count);
        EXPECT_EQ(newest_checkpoint(folder.path()).value(), 42u);
        const absl::StatusOr<Checkpoint> read = read_checkpoint_set(folder.path(), 42);
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_TRUE(same(*read, whole)) << elements << " elements, " << shard_count << " shards";
      }
    }
  }
}

TEST(CheckpointSet, NamesSortByStep) {
  EXPECT_EQ(checkpoint_file_name(7, 0, 2, 3), "gradrail-000000000007-0000000000000000-2-of-3.ckpt");
  EXPECT_EQ(checkpoint_file_name(1234567890123456, 0, 0, 1), "gradrail-1234567890123456-0000000000000000-0-of-1.ckpt");
}

TEST(CheckpointSet, NewestIgnoresIncompleteAndForeign) {
  const TemporaryFolder folder;
  EXPECT_EQ(newest_checkpoint(folder.path()).status().code(), absl::StatusCode::kNotFound);
  const absl::Status no_folder = newest_checkpoint(folder.file("none")).status();
  EXPECT_EQ(no_folder.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(no_folder), HasSubstr(folder.file("none")));

  write_set(folder, model(50, 5), 2);
  write_set(folder, model(50, 100), 1);
  write_set(folder, model(50, 200), 3);
  std::filesystem::remove(folder.file(checkpoint_file_name(200, 0, 1, 3)));
  for (const char* name :
       {"gradrail-000000000300-0000000000000007-0-of-1.ckpt.tmp", "gradrail-300-0000000000000007-0-of-1.ckpt",
        "gradrail-000000000300-7-0-of-1.ckpt", "gradrail-000000000300-0-of-1.ckpt",
        "gradrail-000000000300-0000000000000007-0-of-1.ckpt~", "gradrail-000000000300-0000000000000007-1-of-1.ckpt",
        "gradrail-000000000300-0000000000000007-00-of-1.ckpt", "gradrail--00000000300-0000000000000007-0-of-1.ckpt",
        "gradrail-99999999999999999999-0000000000000007-0-of-1.ckpt",
        "gradrail-000000000300-0000000000000007-0-of-0.ckpt", "model.ckpt", "gradrail-"}) {
    write_bytes(folder.file(name), "x");
  }
  EXPECT_EQ(newest_checkpoint(folder.path()).value(), 100u);
}

TEST(CheckpointSet, MissingShardsAreNamed) {
  const TemporaryFolder folder;
  write_set(folder, model(100), 3);
  std::filesystem::remove(folder.file(checkpoint_file_name(42, 0, 1, 3)));
  const absl::Status status = read_checkpoint_set(folder.path(), 42).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(status), AllOf(HasSubstr(folder.path()), HasSubstr("step 42"), HasSubstr("missing 1")));
  EXPECT_THAT(message(read_checkpoint_set(folder.path(), 43).status()), HasSubstr("no file"));
}

TEST(CheckpointSet, TheLaterOfTwoSetsOfAStepCounts) {
  for (const uint32_t later : {2u, 3u}) {
    const TemporaryFolder folder;
    Checkpoint old = model(100);
    old.header.saved_us = 1;
    Checkpoint fresh = old;
    fresh.parameters[0] += 1.0f;
    fresh.header.saved_us = 2;
    write_set(folder, fresh, later);
    write_set(folder, old, 5 - later);
    EXPECT_TRUE(same(read_checkpoint_set(folder.path(), 42).value(), fresh));
  }
}

/// A run that went back and was killed while it saved a step once more.
TEST(CheckpointSet, HalvesOfTwoSavesAreNoSet) {
  const TemporaryFolder folder;
  for (const uint64_t saved_us : {1, 2}) {
    Checkpoint whole = model(100);
    whole.header.saved_us = saved_us;
    write_set(folder, whole, 2);
    std::filesystem::remove(folder.file(checkpoint_file_name(42, saved_us, 2 - saved_us, 2)));
  }
  EXPECT_EQ(newest_checkpoint(folder.path()).status().code(), absl::StatusCode::kNotFound);
}

/// Writes shard 1 of 3 with a change, beside the right shards 0 and 2.
absl::Status with_odd_shard(void (*change)(Checkpoint&)) {
  const TemporaryFolder folder;
  const Checkpoint whole = model(100);
  write_set(folder, whole, 3);
  Checkpoint part = cut(whole, ShardMap::cut(100, 3, 256).value(), 1);
  const std::string path = shard_file(folder, part);
  change(part);
  EXPECT_TRUE(write_checkpoint(path, view(part)).ok());
  const absl::Status status = read_checkpoint_set(folder.path(), 42).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  return status;
}

TEST(CheckpointSet, ShardsThatDisagreeAreNamed) {
  const std::string shard1 = checkpoint_file_name(42, 0, 1, 3);
  const auto says = [&](const std::string& what) { return AllOf(HasSubstr(shard1), HasSubstr(what)); };
  EXPECT_THAT(message(with_odd_shard([](Checkpoint& c) { c.header.global_step = 41; })), says("step 41"));
  EXPECT_THAT(message(with_odd_shard([](Checkpoint& c) { c.header.saved_us = 5; })), says("saved at 5 us"));
  EXPECT_THAT(message(with_odd_shard([](Checkpoint& c) { c.header.shard_index = 2; })), says("shard 2 of 3"));
  EXPECT_THAT(message(with_odd_shard([](Checkpoint& c) { c.header.shard_count = 2; })), says("shard 1 of 2"));
  EXPECT_THAT(message(with_odd_shard([](Checkpoint& c) { c.header.optimizer.beta2 = 0.5f; })), says("optimizer"));
  EXPECT_THAT(message(with_odd_shard([](Checkpoint& c) { c.header.bucket_bytes = 512; })), says("buckets of 512"));
  EXPECT_THAT(message(with_odd_shard([](Checkpoint& c) { c.header.schema[0].name = "other"; })), says("'other'"));
  EXPECT_THAT(message(with_odd_shard([](Checkpoint& c) { c.header.range.first += 1; })), says("begins at element"));
}

TEST(CheckpointSet, RangesMustCoverTheModel) {
  const TemporaryFolder folder;
  Checkpoint half = make_checkpoint(OptimizerKind::sgd, {0, 50}, 100, 1);
  ASSERT_TRUE(write_checkpoint(shard_file(folder, half), view(half)).ok());
  EXPECT_THAT(message(read_checkpoint_set(folder.path(), 42).status()), HasSubstr("hold 50 of 100 elements"));
}

TEST(CheckpointSet, DamageInAnyShardIsFound) {
  const TemporaryFolder folder;
  write_set(folder, model(100), 3);
  const std::string last = folder.file(checkpoint_file_name(42, 0, 2, 3));
  std::string bytes = read_bytes(last);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(last, bytes);
  const absl::Status status = read_checkpoint_set(folder.path(), 42).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(message(status), HasSubstr(last));
}

}  // namespace
}  // namespace gradrail::ps
