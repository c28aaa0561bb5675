#include "ps/shard/shard_protocol.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/shard/shard_protocol_driver.h"

namespace gradrail::ps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Mode kAsync{ModeKind::async};
constexpr Mode sync_of(uint32_t worker_count) { return {ModeKind::sync, worker_count}; }

Driver async_driver(uint32_t worker_count, uint32_t buckets = 1, bool initialised = true) {
  Driver driver(kAsync, buckets, initialised);
  for (WorkerIndex worker = 0; worker < worker_count; ++worker) driver.protocol.add_worker(worker, kFirstIncarnation);
  return driver;
}

Driver sync_driver(uint32_t worker_count, uint32_t buckets = 1, bool initialised = true, uint64_t version = 0) {
  Driver driver(sync_of(worker_count), buckets, initialised, version);
  for (WorkerIndex worker = 0; worker < worker_count; ++worker) driver.protocol.add_worker(worker, kFirstIncarnation);
  return driver;
}

// ---- async ----

TEST(AsyncProtocol, AppliesAtOnceAndAnswersWithVersionAndStaleness) {
  Driver driver = async_driver(2);
  EXPECT_THAT(driver.push(0, 1), ElementsAre("apply b0 v1 by 0", "answer w0 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(1, 1), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s1 v2 stale 1"));
  EXPECT_THAT(driver.arrive({0, kFirstIncarnation, ArrivalKind::push, 0, 2, 1}),
              ElementsAre("apply b0 v3 by 0", "answer w0 b0 s2 v3 stale 1"));
}

TEST(AsyncProtocol, StalenessOfABaseFromBeforeARestoreIsZero) {
  Driver driver = async_driver(1);
  EXPECT_THAT(driver.arrive({0, kFirstIncarnation, ArrivalKind::push, 0, 1, 77}),
              ElementsAre("apply b0 v1 by 0", "answer w0 b0 s1 v1 stale 0"));
}

TEST(AsyncProtocol, RepeatIsAnsweredWithTodaysVersionAndItsOwnStaleness) {
  Driver driver = async_driver(2);
  driver.push(0, 1);
  driver.push(1, 1);
  EXPECT_THAT(driver.push(1, 1), ElementsAre("answer w1 b0 s1 v2 stale 1"));
  EXPECT_THAT(driver.push(0, 1), ElementsAre("answer w0 b0 s1 v2 stale 0"));
  EXPECT_EQ(driver.protocol.version(0), 2u);
}

TEST(AsyncProtocol, LateCopyOfAnOlderStepIsNotAnswered) {
  Driver driver = async_driver(1);
  driver.push(0, 1);
  driver.push(0, 2);
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
}

TEST(AsyncProtocol, GapIsRefusedAndChangesNothing) {
  Driver driver = async_driver(1, 3);
  EXPECT_THAT(driver.push(0, 2, 1), ElementsAre("refuse w0 b1 s2"));
  EXPECT_THAT(driver.reason(),
              AllOf(HasSubstr("worker 0"), HasSubstr("bucket 1"), HasSubstr("step 2"), HasSubstr("expected step 1")));
  EXPECT_THAT(driver.push(0, 1, 1), ElementsAre("apply b1 v1 by 0", "answer w0 b1 s1 v1 stale 0"));
}

TEST(AsyncProtocol, BucketsCountTheirStepsApart) {
  Driver driver = async_driver(1, 2);
  driver.push(0, 1, 0);
  EXPECT_THAT(driver.push(0, 2, 1), ElementsAre("refuse w0 b1 s2"));
  EXPECT_THAT(driver.push(0, 2, 0), ElementsAre("apply b0 v2 by 0", "answer w0 b0 s2 v2 stale 0"));
}

TEST(AsyncProtocol, NewIncarnationCountsFromOneAndTheOldOneIsIgnored) {
  Driver driver = async_driver(1);
  driver.push(0, 1);
  driver.protocol.add_worker(0, kSecondIncarnation);
  EXPECT_THAT(driver.push(0, 2), IsEmpty());
  EXPECT_THAT(driver.push(0, 1, 0, kSecondIncarnation), ElementsAre("apply b0 v2 by 0", "answer w0 b0 s1 v2 stale 1"));
  EXPECT_FALSE(driver.protocol.is_member(0, kFirstIncarnation));
  EXPECT_TRUE(driver.protocol.is_member(0, kSecondIncarnation));
}

TEST(AsyncProtocol, ReplacedIncarnationNeverComesBack) {
  Driver driver = async_driver(1);
  driver.push(0, 1);
  driver.protocol.add_worker(0, kSecondIncarnation);
  driver.protocol.add_worker(0, kFirstIncarnation);
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_TRUE(driver.protocol.is_member(0, kSecondIncarnation));
}

TEST(AsyncProtocol, RemovedWorkerIsIgnoredAndKeepsItsStepsWhenItReturns) {
  Driver driver = async_driver(1);
  driver.push(0, 1);
  driver.remove(0);
  EXPECT_FALSE(driver.protocol.is_member(0, kFirstIncarnation));
  EXPECT_THAT(driver.push(0, 2), IsEmpty());
  driver.protocol.add_worker(0, kFirstIncarnation);
  EXPECT_THAT(driver.push(0, 1), ElementsAre("answer w0 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(0, 2), ElementsAre("apply b0 v2 by 0", "answer w0 b0 s2 v2 stale 0"));
}

TEST(AsyncProtocol, AddingALiveIncarnationAgainForgetsNothing) {
  Driver driver = async_driver(1);
  driver.push(0, 1);
  driver.protocol.add_worker(0, kFirstIncarnation);
  EXPECT_THAT(driver.push(0, 1), ElementsAre("answer w0 b0 s1 v1 stale 0"));
}

TEST(AsyncProtocol, RemoveOfAnOldIncarnationIsIgnored) {
  Driver driver = async_driver(1);
  driver.protocol.add_worker(0, kSecondIncarnation);
  driver.remove(0, kFirstIncarnation);
  EXPECT_TRUE(driver.protocol.is_member(0, kSecondIncarnation));
}

TEST(AsyncProtocol, ReconnectForgetsNoAppliedStep) {
  Driver driver = async_driver(1);
  driver.push(0, 1);
  driver.protocol.reconnect_worker(0, kFirstIncarnation);
  EXPECT_THAT(driver.push(0, 1), ElementsAre("answer w0 b0 s1 v1 stale 0"));
}

TEST(AsyncProtocol, AtCheckpointVersionStepsStillCountFromOne) {
  Driver driver(kAsync, 1, true, 50);
  driver.protocol.add_worker(3, kFirstIncarnation);
  EXPECT_THAT(driver.arrive({3, kFirstIncarnation, ArrivalKind::push, 0, 1, 50}),
              ElementsAre("apply b0 v51 by 3", "answer w3 b0 s1 v51 stale 0"));
}

// ---- before the parameters are initialised ----

TEST(UninitialisedProtocol, PullsAndPushesWaitAndAreAnsweredAscending) {
  Driver driver = async_driver(4, 1, false);
  EXPECT_FALSE(driver.protocol.initialised());
  EXPECT_THAT(driver.push(3, 1), IsEmpty());
  EXPECT_THAT(driver.pull(2, 9), IsEmpty());
  EXPECT_THAT(driver.push(1, 1), IsEmpty());
  EXPECT_THAT(driver.push(1, 1), IsEmpty());  // a copy
  EXPECT_THAT(driver.initialise(0), ElementsAre("init b0 by 0", "answer w0 b0 s0 v0 stale 0", "apply b0 v1 by 1",
                                                "answer w1 b0 s1 v1 stale 0", "answer w2 b0 s9 v1 stale 0",
                                                "apply b0 v2 by 3", "answer w3 b0 s1 v2 stale 1"));
  EXPECT_TRUE(driver.protocol.initialised());
  EXPECT_THAT(driver.push(1, 1), ElementsAre("answer w1 b0 s1 v2 stale 0"));
}

TEST(UninitialisedProtocol, EachBucketIsInitialisedApart) {
  Driver driver = async_driver(2, 2, false);
  driver.pull(1, 0, 1);
  EXPECT_THAT(driver.initialise(0, 0), ElementsAre("init b0 by 0", "answer w0 b0 s0 v0 stale 0"));
  EXPECT_FALSE(driver.protocol.initialised());
  EXPECT_THAT(driver.initialise(0, 1),
              ElementsAre("init b1 by 0", "answer w0 b1 s0 v0 stale 0", "answer w1 b1 s0 v0 stale 0"));
}

TEST(UninitialisedProtocol, ANewChiefMayInitialiseTheOtherBuckets) {
  Driver driver = async_driver(2, 2, false);
  EXPECT_THAT(driver.initialise(0, 0), ElementsAre("init b0 by 0", "answer w0 b0 s0 v0 stale 0"));
  driver.pull(1, 0, 1);
  driver.remove(0);
  EXPECT_THAT(driver.initialise(1, 0), ElementsAre("answer w1 b0 s0 v0 stale 0")) << "has its values";
  EXPECT_THAT(driver.initialise(1, 1), ElementsAre("init b1 by 1", "answer w1 b1 s0 v0 stale 0")) << "one answer";
  EXPECT_TRUE(driver.protocol.initialised());
}

TEST(UninitialisedProtocol, SecondInitialiseIsAnsweredAndNotApplied) {
  Driver driver = async_driver(1, 1, false);
  driver.initialise(0);
  driver.push(0, 1);
  EXPECT_THAT(driver.initialise(0), ElementsAre("answer w0 b0 s0 v1 stale 0"));
}

TEST(UninitialisedProtocol, WhatARemovedReplacedOrReconnectedWorkerHadWaitingIsDropped) {
  Driver driver = async_driver(4, 1, false);
  driver.push(1, 1);
  driver.push(2, 1);
  driver.push(3, 1);
  driver.remove(1);
  driver.protocol.add_worker(2, kSecondIncarnation);
  driver.protocol.reconnect_worker(3, kFirstIncarnation);
  EXPECT_THAT(driver.initialise(0), ElementsAre("init b0 by 0", "answer w0 b0 s0 v0 stale 0"));
  EXPECT_THAT(driver.push(3, 1), ElementsAre("apply b0 v1 by 3", "answer w3 b0 s1 v1 stale 0"));
}

TEST(UninitialisedProtocol, APushWaitingIsNotDisplacedByAPullButDisplacesOne) {
  Driver driver = async_driver(3, 1, false);
  driver.push(1, 1);
  driver.pull(1);
  driver.pull(2);
  driver.push(2, 1);
  EXPECT_THAT(driver.initialise(0),
              ElementsAre("init b0 by 0", "answer w0 b0 s0 v0 stale 0", "apply b0 v1 by 1",
                          "answer w1 b0 s1 v1 stale 0", "apply b0 v2 by 2", "answer w2 b0 s1 v2 stale 1"));
}

TEST(UninitialisedProtocol, SyncPushesWaitForTheValuesAndForEachOther) {
  Driver driver = sync_driver(2, 1, false);
  driver.push(1, 1);
  driver.push(0, 1);
  EXPECT_THAT(driver.protocol.waiting_for(0), IsEmpty());
  driver.remove(1);  // must not complete a step of a bucket without values
  EXPECT_EQ(driver.protocol.version(0), 0u);
  driver.protocol.add_worker(1, kFirstIncarnation);
  EXPECT_THAT(driver.push(1, 1), IsEmpty());
  // The chief's own push was displaced by its initialise: it has not seen what it was to compute on.
  EXPECT_THAT(driver.initialise(0), ElementsAre("init b0 by 0", "answer w0 b0 s0 v0 stale 0"));
  EXPECT_THAT(driver.push(0, 1),
              ElementsAre("apply b0 v1 by 0,1", "answer w0 b0 s1 v1 stale 0", "answer w1 b0 s1 v1 stale 0"));
}

// ---- pulls ----

TEST(Pull, IsAnsweredAtOnceAndCountsNoStep) {
  Driver driver = async_driver(1);
  EXPECT_THAT(driver.pull(0, 7), ElementsAre("answer w0 b0 s7 v0 stale 0"));
  EXPECT_THAT(driver.push(0, 1), ElementsAre("apply b0 v1 by 0", "answer w0 b0 s1 v1 stale 0"));
}

TEST(Pull, LeavesASyncPushWaiting) {
  Driver driver = sync_driver(2);
  driver.push(0, 1);
  EXPECT_THAT(driver.pull(0, 1), ElementsAre("answer w0 b0 s1 v0 stale 0"));
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(1));
}

// ---- the short way ----

// Driver::arrive() compares both ways.
TEST(LonePush, OfEachWorkerInAsync) {
  Driver driver = async_driver(2);
  driver.pull(0);
  driver.push(1, 1);
  EXPECT_EQ(driver.lone_pushes, 0) << "the first arrival of a worker";
  EXPECT_THAT(driver.push(1, 2), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s2 v2 stale 0"));
  EXPECT_THAT(driver.push(0, 1), ElementsAre("apply b0 v3 by 0", "answer w0 b0 s1 v3 stale 2"));
  EXPECT_EQ(driver.lone_pushes, 2);
  driver.push(0, 1);
  driver.push(0, 3);
  driver.push(0, 2, 1);
  driver.push(0, 2, 0, kSecondIncarnation);
  EXPECT_EQ(driver.lone_pushes, 2) << "a repeated push, a gap, an unknown bucket, an unknown incarnation";
}

TEST(LonePush, OfTheOnlyWorkerThatIsExpectedInSync) {
  Driver driver = sync_driver(2);
  driver.push(0, 1);
  driver.push(1, 1);
  driver.push(0, 2);
  driver.push(1, 2);
  EXPECT_EQ(driver.lone_pushes, 0) << "each waits for the other";
  driver.push(0, 3);
  EXPECT_THAT(driver.remove(1), ElementsAre("apply b0 v3 by 0", "answer w0 b0 s3 v3 stale 0"));
  EXPECT_THAT(driver.push(0, 4), ElementsAre("apply b0 v4 by 0", "answer w0 b0 s4 v4 stale 0"));
  EXPECT_EQ(driver.lone_pushes, 1);
  driver.mark_finished(0);
  driver.push(0, 5);
  EXPECT_EQ(driver.lone_pushes, 1) << "its steps are done";
}

TEST(LonePush, NotWhereAnAnswerMayWait) {
  const Mode ssp = {.kind = ModeKind::ssp, .worker_count = 1, .bound = 1};
  const Mode grace = {.kind = ModeKind::quorum, .worker_count = 1, .bound = 1, .grace = {.seconds = 0.001}};
  for (const Mode& mode : {ssp, grace}) {
    Driver driver(mode, 1);
    driver.protocol.add_worker(0, kFirstIncarnation);
    driver.push(0, 1);
    driver.push(0, 2);
    EXPECT_EQ(driver.protocol.version(0), 2u);
    EXPECT_EQ(driver.lone_pushes, 0);
  }
  Driver empty = async_driver(1, 1, false);
  empty.pull(0);
  empty.push(0, 1);
  EXPECT_EQ(empty.lone_pushes, 0) << "there are no initial values";
}

// ---- sync ----

TEST(SyncProtocol, LastMissingPushAppliesOnceWithContributorsAscending) {
  Driver driver = sync_driver(3);
  EXPECT_THAT(driver.push(2, 1), IsEmpty());
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(1));
  EXPECT_THAT(driver.push(1, 1), ElementsAre("apply b0 v1 by 0,1,2", "answer w0 b0 s1 v1 stale 0",
                                             "answer w1 b0 s1 v1 stale 0", "answer w2 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(0, 1, 2));
}

TEST(SyncProtocol, WaitsForWorkersThatHaveNotJoinedYet) {
  Driver driver(sync_of(2), 1);
  driver.protocol.add_worker(0, kFirstIncarnation);
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(1));
}

TEST(SyncProtocol, AWorkerThatIsNotExpectedIsNotWaitedForUnlessItJoins) {
  Driver driver(sync_of(3), 1);
  driver.protocol.add_worker(0, kFirstIncarnation);
  driver.push(0, 1);
  Actions actions;
  driver.protocol.stop_expecting_worker(0, actions);
  driver.protocol.stop_expecting_worker(1, actions);
  driver.protocol.stop_expecting_worker(7, actions);
  EXPECT_THAT(actions, IsEmpty()) << "one is here, one is missing still, one was never expected";
  driver.protocol.stop_expecting_worker(2, actions);
  EXPECT_EQ(actions.size(), 2u);
  EXPECT_EQ(driver.protocol.version(0), 1u);
  driver.protocol.add_worker(2, kFirstIncarnation);
  driver.pull(2);
  EXPECT_THAT(driver.push(0, 2), IsEmpty());
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(2));
}

TEST(SyncProtocol, AWorkerWithoutADataPathHoldsUpNoStep) {
  Driver driver = sync_driver(2, 2);
  driver.remove(1);
  driver.protocol.add_worker(1, kSecondIncarnation);
  EXPECT_THAT(driver.push(0, 1), ElementsAre("apply b0 v1 by 0", "answer w0 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(0, 2), ElementsAre("apply b0 v2 by 0", "answer w0 b0 s2 v2 stale 0"));
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(0));
  EXPECT_THAT(driver.remove(1, kSecondIncarnation), IsEmpty()) << "it is lost without a path";
  driver.push(0, 1, 1);
  driver.push(0, 2, 1);
  driver.protocol.add_worker(1, kThirdIncarnation);
  EXPECT_THAT(driver.pull(1, 0, 1, kThirdIncarnation), ElementsAre("answer w1 b1 s0 v2 stale 0")) << "it has one";
  EXPECT_THAT(driver.push(0, 3), IsEmpty()) << "its first request counts for all buckets";
  EXPECT_THAT(driver.push(1, 3, 0, kThirdIncarnation),
              ElementsAre("apply b0 v3 by 0,1", "answer w0 b0 s3 v3 stale 0", "answer w1 b0 s3 v3 stale 0"));
}

TEST(SyncProtocol, AWorkerThatReturnsAsTheSameIncarnationIsWaitedForAtOnce) {
  Driver driver = sync_driver(2);
  driver.push(1, 1);
  driver.remove(1);
  driver.protocol.add_worker(1, kFirstIncarnation);
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
}

TEST(SyncProtocol, RepeatWhileWaitingIsNotCountedTwice) {
  Driver driver = sync_driver(2);
  driver.push(0, 1);
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_THAT(driver.push(1, 1),
              ElementsAre("apply b0 v1 by 0,1", "answer w0 b0 s1 v1 stale 0", "answer w1 b0 s1 v1 stale 0"));
}

TEST(SyncProtocol, RepeatOfAnAppliedStepIsAnsweredAgain) {
  Driver driver = sync_driver(2);
  driver.push(0, 1);
  driver.push(1, 1);
  EXPECT_THAT(driver.push(0, 1), ElementsAre("answer w0 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(0, 2), IsEmpty());
  EXPECT_THAT(driver.push(0, 1), IsEmpty());  // it waits for step 2 now: an answer to 1 would mislead it
}

TEST(SyncProtocol, PushAheadIsRefusedWithTheStepExpected) {
  Driver driver = sync_driver(2, 2);
  EXPECT_THAT(driver.push(1, 2, 1), ElementsAre("refuse w1 b1 s2"));
  EXPECT_THAT(driver.reason(),
              AllOf(HasSubstr("worker 1"), HasSubstr("bucket 1"), HasSubstr("step 2"), HasSubstr("expected step 1")));
  EXPECT_THAT(driver.protocol.waiting_for(1), ElementsAre(0, 1));
}

TEST(SyncProtocol, LeavingWorkerIsNotWaitedForAnyMore) {
  Driver driver = sync_driver(3, 2);
  driver.push(0, 1, 0);
  driver.push(2, 1, 0);
  driver.push(1, 1, 1);
  driver.push(0, 1, 1);
  driver.push(0, 1, 1);
  // Bucket 0 lacked worker 1 alone; bucket 1 still lacks worker 2, and what worker 1 pushed there is dropped.
  EXPECT_THAT(driver.remove(1),
              ElementsAre("apply b0 v1 by 0,2", "answer w0 b0 s1 v1 stale 0", "answer w2 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(2, 1, 1),
              ElementsAre("apply b1 v1 by 0,2", "answer w0 b1 s1 v1 stale 0", "answer w2 b1 s1 v1 stale 0"));
}

TEST(SyncProtocol, LastWorkerToLeaveAppliesNothing) {
  Driver driver = sync_driver(1);
  EXPECT_THAT(driver.remove(0), IsEmpty());
  EXPECT_EQ(driver.protocol.version(0), 0u);
}

TEST(SyncProtocol, ReplacedIncarnationsPushIsDroppedAndStillExpected) {
  Driver driver = sync_driver(2);
  driver.push(0, 1);
  driver.protocol.add_worker(0, kSecondIncarnation);
  EXPECT_THAT(driver.push(1, 1), IsEmpty());
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(0));
  EXPECT_THAT(driver.push(0, 1, 0, kSecondIncarnation),
              ElementsAre("apply b0 v1 by 0,1", "answer w0 b0 s1 v1 stale 0", "answer w1 b0 s1 v1 stale 0"));
}

TEST(SyncProtocol, AfterAReconnectWhatWaitedCountsOnlyOnceRepeated) {
  Driver driver = sync_driver(2);
  driver.push(0, 1);
  driver.protocol.reconnect_worker(0, kFirstIncarnation);
  EXPECT_THAT(driver.push(1, 1), IsEmpty());
  EXPECT_THAT(driver.push(0, 1),
              ElementsAre("apply b0 v1 by 0,1", "answer w0 b0 s1 v1 stale 0", "answer w1 b0 s1 v1 stale 0"));
}

TEST(SyncProtocol, WorkerThatReturnsIsExpectedFromTheNextStepOfEachBucket) {
  Driver driver = sync_driver(2, 2);
  driver.remove(1);
  driver.push(0, 1, 0);
  driver.push(0, 1, 1);
  driver.push(0, 2, 0);  // bucket 0 is at version 2, bucket 1 at 1
  driver.protocol.add_worker(1, kSecondIncarnation);
  EXPECT_EQ(driver.protocol.next_step(), 2u);
  EXPECT_THAT(driver.push(1, 2, 0, kSecondIncarnation), ElementsAre("answer w1 b0 s2 v2 stale 1 dropped"));
  EXPECT_THAT(driver.push(0, 2, 1), IsEmpty());
  EXPECT_THAT(driver.push(1, 2, 1, kSecondIncarnation),
              ElementsAre("apply b1 v2 by 0,1", "answer w0 b1 s2 v2 stale 0", "answer w1 b1 s2 v2 stale 0"));
  EXPECT_THAT(driver.push(0, 3, 0), IsEmpty());
  EXPECT_THAT(driver.push(1, 3, 0, kSecondIncarnation),
              ElementsAre("apply b0 v3 by 0,1", "answer w0 b0 s3 v3 stale 0", "answer w1 b0 s3 v3 stale 0"));
}

TEST(SyncProtocol, AfterARestoreTheFirstStepIsVersionPlusOne) {
  Driver driver = sync_driver(1, 2, true, 40);
  EXPECT_EQ(driver.protocol.next_step(), 41u);
  EXPECT_THAT(driver.push(0, 42), ElementsAre("refuse w0 b0 s42"));
  EXPECT_THAT(driver.push(0, 41), ElementsAre("apply b0 v41 by 0", "answer w0 b0 s41 v41 stale 0"));
  EXPECT_EQ(driver.protocol.next_step(), 41u);  // bucket 1 still waits for it
}

TEST(SyncProtocol, WorkerBeyondTheCountIsExpectedWhileItIsHere) {
  Driver driver = sync_driver(1);
  driver.protocol.add_worker(3, kFirstIncarnation);
  driver.pull(3);
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(3));
  EXPECT_THAT(driver.push(3, 1),
              ElementsAre("apply b0 v1 by 0,3", "answer w0 b0 s1 v1 stale 0", "answer w3 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(0, 2), IsEmpty());
  EXPECT_THAT(driver.remove(3), ElementsAre("apply b0 v2 by 0", "answer w0 b0 s2 v2 stale 0"));
}

TEST(SyncProtocol, MoreWorkersThanAnActionHoldsInline) {
  constexpr uint32_t kWorkers = 20;
  Driver driver = sync_driver(kWorkers);
  for (WorkerIndex worker = kWorkers - 1; worker > 0; --worker) EXPECT_THAT(driver.push(worker, 1), IsEmpty());
  driver.push(0, 1);
  ASSERT_EQ(driver.actions.size(), kWorkers + 1u);
  EXPECT_TRUE(std::is_sorted(driver.actions[0].contributors.begin(), driver.actions[0].contributors.end()));
  EXPECT_EQ(driver.actions[0].contributors.size(), kWorkers);
}

// ---- bad input ----

TEST(BadInput, PushesOfNonMembersChangeNothing) {
  Driver driver = async_driver(1, 1, false);
  EXPECT_THAT(driver.push(5, 1), IsEmpty());
  EXPECT_THAT(driver.pull(5), IsEmpty());
  EXPECT_THAT(driver.push(0, 1, 0, kSecondIncarnation), IsEmpty());
  EXPECT_THAT(driver.push(5, 1, 99), IsEmpty());
  EXPECT_THAT(driver.remove(5), IsEmpty());
  driver.protocol.reconnect_worker(5, kFirstIncarnation);
  EXPECT_FALSE(driver.protocol.is_member(5, kFirstIncarnation));
}

TEST(BadInput, BucketKindAndStepOutOfRangeAreRefused) {
  Driver driver = async_driver(1, 2);
  EXPECT_THAT(driver.push(0, 1, 2), ElementsAre("refuse w0 b2 s1"));
  EXPECT_THAT(driver.reason(), HasSubstr("2 buckets"));
  EXPECT_THAT(driver.push(0, 1, UINT32_MAX), ElementsAre(fmt::format("refuse w0 b{} s1", UINT32_MAX)));
  EXPECT_THAT(driver.arrive({0, kFirstIncarnation, static_cast<ArrivalKind>(77), 0, 1, 0}),
              ElementsAre("refuse w0 b0 s1"));
  EXPECT_THAT(driver.reason(), HasSubstr("77"));
  EXPECT_THAT(driver.arrive({0, kFirstIncarnation, ArrivalKind::push, 0, 0, 0}), ElementsAre("refuse w0 b0 s0"));
  EXPECT_THAT(driver.push(0, UINT64_MAX), ElementsAre(fmt::format("refuse w0 b0 s{}", UINT64_MAX)));
  EXPECT_EQ(driver.protocol.version(0), 0u);
}

TEST(BadInput, RefusalDropsWhatWaitsSinceTheSlotsGoWithTheConnection) {
  Driver driver = sync_driver(2, 2);
  driver.push(0, 1, 0);
  EXPECT_THAT(driver.push(0, 9, 1), ElementsAre("refuse w0 b1 s9"));
  EXPECT_THAT(driver.push(1, 1, 0), IsEmpty());
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(0));
}

TEST(BadInput, ShardWithoutBuckets) {
  Driver driver = async_driver(1, 0);
  EXPECT_TRUE(driver.protocol.initialised());
  EXPECT_EQ(driver.protocol.next_step(), 1u);
  EXPECT_THAT(driver.push(0, 1), ElementsAre("refuse w0 b0 s1"));
}

TEST(Actions, AreAppendedToWhatIsThere) {
  Driver driver = async_driver(1);
  driver.protocol.on_arrival({0, kFirstIncarnation, ArrivalKind::push, 0, 1, 0}, driver.actions);
  driver.protocol.on_arrival({0, kFirstIncarnation, ArrivalKind::push, 0, 2, 1}, driver.actions);
  EXPECT_EQ(driver.actions.size(), 4u);
}

}  // namespace
}  // namespace gradrail::ps
