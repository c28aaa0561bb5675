// A backup continues from the imported state alone: completed pushes stay completed, other pushes are repeated.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/shard/shard_protocol_driver.h"

namespace gradrail::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void copy(const ShardProtocol& from, ShardProtocol& to, uint32_t bucket) {
  BucketState state;
  from.export_bucket(bucket, state);
  to.import_bucket(bucket, state);
}

/// A backup of two workers that was in sync with its primary before the primary failed.
Driver successor_of(const Driver& primary, Mode mode, uint32_t buckets) {
  Driver backup(mode, buckets, false);
  for (uint32_t bucket = 0; bucket < buckets; ++bucket) copy(primary.protocol, backup.protocol, bucket);
  backup.protocol.add_former_member(0, kFirstIncarnation);
  backup.protocol.add_former_member(1, kFirstIncarnation);
  return backup;
}

Driver primary_of(Mode mode, uint32_t buckets = 1) {
  Driver driver(mode, buckets);
  driver.protocol.add_worker(0, kFirstIncarnation);
  driver.protocol.add_worker(1, kFirstIncarnation);
  return driver;
}

TEST(BackupProtocol, APushThatWasAppliedIsOnlyAnsweredAgain) {
  const Mode mode{ModeKind::async, 2};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  primary.push(1, 1);
  Driver backup = successor_of(primary, mode, 1);
  EXPECT_TRUE(backup.protocol.initialised());
  EXPECT_EQ(backup.protocol.version(0), 2u);
  EXPECT_THAT(backup.push(1, 1), ElementsAre("answer w1 b0 s1 v2 stale 1"));
  EXPECT_THAT(backup.push(1, 2), ElementsAre("apply b0 v3 by 1", "answer w1 b0 s2 v3 stale 1"));
  EXPECT_THAT(backup.push(0, 3), ElementsAre("refuse w0 b0 s3")) << "a gap";
}

TEST(BackupProtocol, APushThatWaitedIsRepeatedAndSummedOnce) {
  const Mode mode{ModeKind::sync, 2};
  Driver primary = primary_of(mode, 2);
  for (const uint32_t bucket : {0, 1}) {
    primary.push(0, 1, bucket);
    primary.push(1, 1, bucket);
  }
  primary.push(0, 2, 1);
  Driver backup = successor_of(primary, mode, 2);
  EXPECT_THAT(backup.push(1, 2, 1), IsEmpty()) << "worker 0's push of this step went with the primary";
  EXPECT_THAT(backup.push(0, 2, 1),
              ElementsAre("apply b1 v2 by 0,1", "answer w0 b1 s2 v2 stale 0", "answer w1 b1 s2 v2 stale 0"));
  EXPECT_THAT(backup.push(0, 1, 0), ElementsAre("answer w0 b0 s1 v1 stale 0"));
}

/// A worker that has made steps at the primary beside its backup goes back to the step that the backup has.
TEST(BackupProtocol, KnowsTheStepsOfAnIncarnationUntilAnotherOneReplacesIt) {
  const Mode mode{ModeKind::async, 2};
  Driver primary = primary_of(mode, 2);
  for (const uint64_t step : {1, 2}) {
    for (const uint32_t bucket : {0, 1}) primary.push(0, step, bucket);
  }
  primary.push(0, 3, 1);
  Driver backup = successor_of(primary, mode, 2);
  primary.push(0, 3, 0);
  EXPECT_EQ(backup.protocol.done_step(0, kFirstIncarnation, 0), 2u);
  EXPECT_EQ(backup.protocol.done_step(0, kFirstIncarnation, 1), 3u);
  EXPECT_EQ(backup.protocol.done_step(1, kFirstIncarnation, 0), 0u);
  EXPECT_EQ(backup.protocol.done_step(0, kFirstIncarnation + 1, 0), std::nullopt);
  EXPECT_EQ(backup.protocol.done_step(7, kFirstIncarnation, 0), std::nullopt);
  backup.remove(0);
  EXPECT_EQ(backup.protocol.done_step(0, kFirstIncarnation, 0), 2u);
  backup.protocol.add_worker(0, kFirstIncarnation + 1);
  EXPECT_EQ(backup.protocol.done_step(0, kFirstIncarnation, 0), std::nullopt);
  EXPECT_EQ(backup.protocol.done_step(0, kFirstIncarnation + 1, 0), 0u);
}

TEST(BackupProtocol, AWorkerThatLeftIsNotWaitedFor) {
  const Mode mode{ModeKind::sync, 2};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  primary.push(1, 1);
  primary.remove(1);
  Driver backup = successor_of(primary, mode, 1);
  backup.remove(1);
  EXPECT_THAT(backup.push(0, 2), ElementsAre("apply b0 v2 by 0", "answer w0 b0 s2 v2 stale 0"));
}

TEST(BackupProtocol, AWorkerThatWasReplacedStaysReplaced) {
  const Mode mode{ModeKind::async, 2};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  Driver backup(mode, 1, false);
  copy(primary.protocol, backup.protocol, 0);
  primary.protocol.add_worker(0, kFirstIncarnation + 1);
  primary.push(0, 1, 0, kFirstIncarnation + 1);
  copy(primary.protocol, backup.protocol, 0);
  backup.protocol.add_worker(0, kFirstIncarnation);
  EXPECT_FALSE(backup.protocol.is_member(0, kFirstIncarnation));
  backup.protocol.add_worker(0, kFirstIncarnation + 1);
  EXPECT_THAT(backup.push(0, 1, 0, kFirstIncarnation + 1), ElementsAre("answer w0 b0 s1 v2 stale 1"));
}

TEST(BackupProtocol, AWorkerWithoutAnIncarnationHasNoStateToImport) {
  const Mode mode{ModeKind::sync, 3};
  Driver primary = primary_of(mode);
  primary.protocol.add_worker(2, 0);  // it had left before the backup started
  primary.remove(2, 0);
  Driver backup(mode, 1, false);
  copy(primary.protocol, backup.protocol, 0);
  BucketState here;
  backup.protocol.export_bucket(0, here);
  EXPECT_EQ(here.done.size(), 3u);
}

TEST(BackupProtocol, SspHoldsTheWorkersThatThePrimaryHeld) {
  const Mode mode{ModeKind::ssp, 2, 1};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  EXPECT_THAT(primary.push(0, 2), ElementsAre("apply b0 v2 by 0"));
  Driver backup = successor_of(primary, mode, 1);
  EXPECT_THAT(backup.push(0, 2), IsEmpty()) << "applied, and still two ahead";
  EXPECT_THAT(backup.push(1, 1),
              ElementsAre("apply b0 v3 by 1", "answer w0 b0 s2 v3 stale 0", "answer w1 b0 s1 v3 stale 2"));
}

/// The departure of worker 1 raises the floor at the primary, and no update carries it to the backup. tests/ps/prove
/// found that the backup then refused the first push of the next incarnation.
TEST(BackupProtocol, AnSspWorkerThatJoinedAfterTheLastCopyIsNotRefused) {
  const Mode mode{ModeKind::ssp, 2, 1};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  Driver backup(mode, 1, false);
  copy(primary.protocol, backup.protocol, 0);
  primary.remove(1);
  primary.protocol.add_worker(1, kSecondIncarnation);
  ASSERT_EQ(primary.protocol.next_step(), 2u);
  backup.protocol.add_former_member(0, kFirstIncarnation);
  backup.protocol.add_former_member(1, kSecondIncarnation);
  EXPECT_THAT(backup.push(1, 2, 0, kSecondIncarnation), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s2 v2 stale 0"));
  EXPECT_THAT(backup.push(1, 4, 0, kSecondIncarnation), ElementsAre("refuse w1 b0 s4")) << "a gap";
}

TEST(BackupProtocol, AnSspWorkerThatJoinsAfterTheTakeoverBeginsAtTheFloor) {
  const Mode mode{ModeKind::ssp, 2, 1};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  Driver backup = successor_of(primary, mode, 1);
  backup.protocol.add_worker(1, kSecondIncarnation);
  EXPECT_THAT(backup.push(1, 4, 0, kSecondIncarnation), ElementsAre("refuse w1 b0 s4"));
  EXPECT_THAT(backup.push(1, 1, 0, kSecondIncarnation), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s1 v2 stale 1"));
}

TEST(BackupProtocol, OneThatTakesAllAgainHasWhatThereIsNow) {
  const Mode mode{ModeKind::quorum, 2, 1};
  Driver primary = primary_of(mode);
  Driver backup(mode, 1, false);
  copy(primary.protocol, backup.protocol, 0);
  primary.push(0, 1);
  primary.push(1, 1);
  copy(primary.protocol, backup.protocol, 0);
  BucketState there, here;
  primary.protocol.export_bucket(0, there);
  backup.protocol.export_bucket(0, here);
  EXPECT_EQ(here.done, there.done);
  EXPECT_EQ(here.version, 1u);
  EXPECT_TRUE(here.done.at(1).dropped);
}

}  // namespace
}  // namespace gradrail::ps
