// What a standby imports is all that it needs to go on: pushes that are done stay done, others come again.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/protocol_driver.h"

namespace gradrail::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void copy(const ShardProtocol& from, ShardProtocol& to, uint32_t bucket) {
  BucketState state;
  from.export_bucket(bucket, state);
  to.import_bucket(bucket, state);
}

/// A standby of two workers that has been level, and whose primary is gone.
Driver successor_of(const Driver& primary, Mode mode, uint32_t buckets) {
  Driver standby(mode, buckets, false);
  for (uint32_t bucket = 0; bucket < buckets; ++bucket) copy(primary.protocol, standby.protocol, bucket);
  standby.protocol.add_worker(0, kFirstLife);
  standby.protocol.add_worker(1, kFirstLife);
  return standby;
}

Driver primary_of(Mode mode, uint32_t buckets = 1) {
  Driver driver(mode, buckets);
  driver.protocol.add_worker(0, kFirstLife);
  driver.protocol.add_worker(1, kFirstLife);
  return driver;
}

TEST(StandbyProtocol, APushThatWasAppliedIsOnlyAnsweredAgain) {
  const Mode mode{ModeKind::async, 2};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  primary.push(1, 1);
  Driver standby = successor_of(primary, mode, 1);
  EXPECT_TRUE(standby.protocol.initialised());
  EXPECT_EQ(standby.protocol.version(0), 2u);
  EXPECT_THAT(standby.push(1, 1), ElementsAre("answer w1 b0 s1 v2 stale 1"));
  EXPECT_THAT(standby.push(1, 2), ElementsAre("apply b0 v3 by 1", "answer w1 b0 s2 v3 stale 1"));
  EXPECT_THAT(standby.push(0, 3), ElementsAre("refuse w0 b0 s3")) << "a gap";
}

TEST(StandbyProtocol, APushThatWaitedIsRepeatedAndSummedOnce) {
  const Mode mode{ModeKind::sync, 2};
  Driver primary = primary_of(mode, 2);
  for (const uint32_t bucket : {0, 1}) {
    primary.push(0, 1, bucket);
    primary.push(1, 1, bucket);
  }
  primary.push(0, 2, 1);
  Driver standby = successor_of(primary, mode, 2);
  EXPECT_THAT(standby.push(1, 2, 1), IsEmpty()) << "worker 0's push of this step went with the primary";
  EXPECT_THAT(standby.push(0, 2, 1),
              ElementsAre("apply b1 v2 by 0,1", "answer w0 b1 s2 v2 stale 0", "answer w1 b1 s2 v2 stale 0"));
  EXPECT_THAT(standby.push(0, 1, 0), ElementsAre("answer w0 b0 s1 v1 stale 0"));
}

TEST(StandbyProtocol, WhoHasLeftIsNotWaitedFor) {
  const Mode mode{ModeKind::sync, 2};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  primary.push(1, 1);
  primary.remove(1);
  Driver standby = successor_of(primary, mode, 1);
  standby.remove(1);
  EXPECT_THAT(standby.push(0, 2), ElementsAre("apply b0 v2 by 0", "answer w0 b0 s2 v2 stale 0"));
}

TEST(StandbyProtocol, AWorkerThatWasReplacedStaysReplaced) {
  const Mode mode{ModeKind::async, 2};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  Driver standby(mode, 1, false);
  copy(primary.protocol, standby.protocol, 0);
  primary.protocol.add_worker(0, kFirstLife + 1);
  primary.push(0, 1, 0, kFirstLife + 1);
  copy(primary.protocol, standby.protocol, 0);
  standby.protocol.add_worker(0, kFirstLife);
  EXPECT_FALSE(standby.protocol.is_member(0, kFirstLife));
  standby.protocol.add_worker(0, kFirstLife + 1);
  EXPECT_THAT(standby.push(0, 1, 0, kFirstLife + 1), ElementsAre("answer w0 b0 s1 v2 stale 1"));
}

TEST(StandbyProtocol, OfWhomNobodyKnowsAnIncarnationThereIsNothingToTake) {
  const Mode mode{ModeKind::sync, 3};
  Driver primary = primary_of(mode);
  primary.protocol.add_worker(2, 0);  // it had left before anybody here was started
  primary.remove(2, 0);
  Driver standby(mode, 1, false);
  copy(primary.protocol, standby.protocol, 0);
  BucketState here;
  standby.protocol.export_bucket(0, here);
  EXPECT_EQ(here.done.size(), 3u);
}

TEST(StandbyProtocol, SspHoldsWhomThePrimaryHeld) {
  const Mode mode{ModeKind::ssp, 2, 1};
  Driver primary = primary_of(mode);
  primary.push(0, 1);
  EXPECT_THAT(primary.push(0, 2), ElementsAre("apply b0 v2 by 0"));
  Driver standby = successor_of(primary, mode, 1);
  EXPECT_THAT(standby.push(0, 2), IsEmpty()) << "applied, and still two ahead";
  EXPECT_THAT(standby.push(1, 1),
              ElementsAre("apply b0 v3 by 1", "answer w0 b0 s2 v3 stale 0", "answer w1 b0 s1 v3 stale 2"));
}

TEST(StandbyProtocol, OneThatTakesAllAgainHasWhatThereIsNow) {
  const Mode mode{ModeKind::backup, 2, 1};
  Driver primary = primary_of(mode);
  Driver standby(mode, 1, false);
  copy(primary.protocol, standby.protocol, 0);
  primary.push(0, 1);
  primary.push(1, 1);
  copy(primary.protocol, standby.protocol, 0);
  BucketState there, here;
  primary.protocol.export_bucket(0, there);
  standby.protocol.export_bucket(0, here);
  EXPECT_EQ(here.done, there.done);
  EXPECT_EQ(here.version, 1u);
  EXPECT_TRUE(here.done.at(1).dropped);
}

}  // namespace
}  // namespace gradrail::ps
