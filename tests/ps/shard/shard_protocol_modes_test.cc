// Backup workers and bounded staleness.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/shard/shard_protocol_driver.h"

namespace gradrail::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Driver driver_of(Mode mode, uint32_t buckets = 1) {
  Driver driver(mode, buckets);
  for (WorkerIndex worker = 0; worker < mode.worker_count; ++worker)
    driver.protocol.add_worker(worker, kFirstIncarnation);
  return driver;
}

// ---- quorum ----

TEST(QuorumProtocol, TheFirstOnesAreSummedInWorkerOrderAndTheLastIsDropped) {
  Driver driver = driver_of({ModeKind::quorum, 3, 2});
  EXPECT_THAT(driver.push(2, 1), IsEmpty());
  EXPECT_THAT(driver.push(0, 1),
              ElementsAre("apply b0 v1 by 0,2", "answer w0 b0 s1 v1 stale 0", "answer w2 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(1, 1), ElementsAre("answer w1 b0 s1 v1 stale 1 dropped"));
  EXPECT_THAT(driver.push(1, 1), ElementsAre("answer w1 b0 s1 v1 stale 1 dropped")) << "a repeat";
  EXPECT_THAT(driver.push(1, 2), IsEmpty());
  EXPECT_THAT(driver.push(2, 2),
              ElementsAre("apply b0 v2 by 1,2", "answer w1 b0 s2 v2 stale 0", "answer w2 b0 s2 v2 stale 0"));
}

TEST(QuorumProtocol, AGrownClusterWaitsForAsMany) {
  Driver driver = driver_of({ModeKind::quorum, 2, 2});
  driver.protocol.add_worker(2, kFirstIncarnation);
  driver.pull(2);
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_THAT(driver.push(2, 1),
              ElementsAre("apply b0 v1 by 0,2", "answer w0 b0 s1 v1 stale 0", "answer w2 b0 s1 v1 stale 0"));
}

TEST(QuorumProtocol, AStragglerMayContinueWhereTheOthersAre) {
  Driver driver = driver_of({ModeKind::quorum, 2, 1});
  for (uint64_t step = 1; step <= 5; ++step) driver.push(0, step);
  EXPECT_THAT(driver.push(1, 1), ElementsAre("answer w1 b0 s1 v5 stale 5 dropped"));
  EXPECT_THAT(driver.push(1, 6), ElementsAre("apply b0 v6 by 1", "answer w1 b0 s6 v6 stale 0"));
}

TEST(QuorumProtocol, FewerWorkersThanTheQuorumContinue) {
  Driver driver = driver_of({ModeKind::quorum, 3, 3});
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_THAT(driver.push(1, 1), IsEmpty());
  EXPECT_THAT(driver.remove(2),
              ElementsAre("apply b0 v1 by 0,1", "answer w0 b0 s1 v1 stale 0", "answer w1 b0 s1 v1 stale 0"));
  driver.remove(1);
  EXPECT_THAT(driver.push(0, 2), ElementsAre("apply b0 v2 by 0", "answer w0 b0 s2 v2 stale 0"));
}

TEST(QuorumProtocol, AnAbsentWorkerCountsForTheStepAndNotForTheMean) {
  Driver driver(Mode{ModeKind::quorum, 3, 2}, 2);
  for (const WorkerIndex worker : {0, 1, 2}) driver.protocol.add_worker(worker, kFirstIncarnation);
  driver.push(0, 1);
  driver.push(1, 1);
  EXPECT_THAT(driver.push(2, 1), ElementsAre("answer w2 b0 s1 v1 stale 1 dropped"));
  driver.push(2, 1, 1);
  driver.push(0, 1, 1);
  driver.push(1, 1, 1);
  EXPECT_THAT(driver.push(2, 2), IsEmpty()) << "late in bucket 0";
  EXPECT_THAT(driver.absent(2, 2, 1), IsEmpty());
  EXPECT_THAT(driver.push(0, 2),
              ElementsAre("apply b0 v2 by 0,2", "answer w0 b0 s2 v2 stale 0", "answer w2 b0 s2 v2 stale 0"));
  EXPECT_THAT(driver.push(0, 2, 1),
              ElementsAre("apply b1 v2 by 0", "answer w0 b1 s2 v2 stale 0", "answer w2 b1 s2 v2 stale 0"));
  EXPECT_THAT(driver.absent(2, 2, 1), ElementsAre("answer w2 b1 s2 v2 stale 0")) << "a repeat";
  EXPECT_THAT(driver.absent(1, 2, 1), ElementsAre("answer w1 b1 s2 v2 stale 1 dropped")) << "too late for that, too";
}

TEST(QuorumProtocol, AbsentWorkersAloneDoNotMakeAStep) {
  Driver driver = driver_of({ModeKind::quorum, 3, 2});
  EXPECT_THAT(driver.absent(0, 3), IsEmpty());
  EXPECT_THAT(driver.absent(1, 1), IsEmpty()) << "the gradient of worker 2 would be late";
  EXPECT_THAT(driver.push(2, 1),
              ElementsAre("apply b0 v1 by 2", "answer w1 b0 s1 v1 stale 0", "answer w2 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(1, 2), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s2 v2 stale 0"))
      << "worker 0 is absent from step 2 as well";
  EXPECT_THAT(driver.push(2, 3),
              ElementsAre("apply b0 v3 by 2", "answer w0 b0 s3 v3 stale 0", "answer w2 b0 s3 v3 stale 0"));
}

TEST(QuorumProtocol, ABucketFollowsWhereAllWorkersAreAbsent) {
  Driver driver = driver_of({ModeKind::quorum, 3, 2});
  EXPECT_THAT(driver.absent(0, 5), IsEmpty());
  EXPECT_THAT(driver.absent(1, 4), IsEmpty());
  EXPECT_THAT(driver.absent(2, 7), ElementsAre("apply b0 v4 by ", "answer w1 b0 s4 v4 stale 0"));
  EXPECT_THAT(driver.push(1, 5),
              ElementsAre("apply b0 v5 by 1", "answer w0 b0 s5 v5 stale 0", "answer w1 b0 s5 v5 stale 0"));
}

TEST(SspProtocol, AWorkerCannotBeAbsent) {
  Driver driver = driver_of({ModeKind::ssp, 2, 1});
  EXPECT_THAT(driver.absent(0, 1), ElementsAre("refuse w0 b0 s1"));
  EXPECT_EQ(driver.reason(), "worker 0 bucket 0 step 1: a worker can be absent from a common step only");
}

// ---- grace windows ----

constexpr Grace kSomeGrace{.seconds = 1};

TEST(GraceProtocol, AStepWithEnoughWaitsForAllThatArePresent) {
  Driver driver = driver_of({ModeKind::quorum, 3, 2, kSomeGrace});
  EXPECT_THAT(driver.push(0, 1), IsEmpty());
  EXPECT_THAT(driver.push(2, 1), ElementsAre("window b0 s1"));
  EXPECT_THAT(driver.push(1, 1), ElementsAre("apply b0 v1 by 0,1,2", "answer w0 b0 s1 v1 stale 0",
                                             "answer w1 b0 s1 v1 stale 0", "answer w2 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.end_window(1), IsEmpty()) << "the step is applied";
}

TEST(GraceProtocol, TheEndOfTheWindowAppliesWhatIsThere) {
  Driver driver = driver_of({ModeKind::quorum, 3, 2, kSomeGrace}, 2);
  driver.push(0, 1);
  driver.push(1, 1);
  EXPECT_THAT(driver.end_window(1, 1), IsEmpty()) << "another bucket, without a window";
  EXPECT_THAT(driver.end_window(1),
              ElementsAre("apply b0 v1 by 0,1", "answer w0 b0 s1 v1 stale 0", "answer w1 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.end_window(1), IsEmpty()) << "again";
  EXPECT_THAT(driver.push(2, 1), ElementsAre("answer w2 b0 s1 v1 stale 1 dropped"));
}

TEST(GraceProtocol, TheWindowOfAnEarlierStepEndsNoLaterStep) {
  Driver driver = driver_of({ModeKind::quorum, 2, 1, kSomeGrace});
  EXPECT_THAT(driver.push(0, 1), ElementsAre("window b0 s1"));
  driver.push(1, 1);
  EXPECT_THAT(driver.push(1, 2), ElementsAre("window b0 s2"));
  EXPECT_THAT(driver.end_window(1), IsEmpty());
  EXPECT_THAT(driver.end_window(3), IsEmpty());
  EXPECT_THAT(driver.end_window(2), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s2 v2 stale 0"));
}

TEST(GraceProtocol, AWindowIsNotForWorkersThatHaveLeftOrNotJoined) {
  Driver driver({ModeKind::quorum, 4, 2, kSomeGrace}, 1);
  for (const WorkerIndex worker : {0u, 1u, 2u}) driver.protocol.add_worker(worker, kFirstIncarnation);
  driver.push(0, 1);
  EXPECT_THAT(driver.push(1, 1), ElementsAre("window b0 s1"));
  EXPECT_THAT(driver.remove(2),
              ElementsAre("apply b0 v1 by 0,1", "answer w0 b0 s1 v1 stale 0", "answer w1 b0 s1 v1 stale 0"));
  driver.push(0, 2);
  EXPECT_THAT(driver.push(1, 2),
              ElementsAre("apply b0 v2 by 0,1", "answer w0 b0 s2 v2 stale 0", "answer w1 b0 s2 v2 stale 0"))
      << "worker 3 has not joined";
}

TEST(GraceProtocol, AStepIsHeldOpenOnce) {
  Driver driver = driver_of({ModeKind::quorum, 3, 2, kSomeGrace});
  driver.push(0, 1);
  EXPECT_THAT(driver.push(1, 1), ElementsAre("window b0 s1"));
  driver.protocol.reconnect_worker(1, kFirstIncarnation);
  EXPECT_THAT(driver.end_window(1), IsEmpty()) << "one gradient is too few";
  EXPECT_THAT(driver.push(1, 1),
              ElementsAre("apply b0 v1 by 0,1", "answer w0 b0 s1 v1 stale 0", "answer w1 b0 s1 v1 stale 0"));
  driver.push(0, 2);
  EXPECT_THAT(driver.push(1, 2), ElementsAre("window b0 s2"));
  driver.protocol.reconnect_worker(1, kFirstIncarnation);
  EXPECT_THAT(driver.push(1, 2), IsEmpty()) << "the window is open";
  EXPECT_THAT(driver.end_window(2),
              ElementsAre("apply b0 v2 by 0,1", "answer w0 b0 s2 v2 stale 0", "answer w1 b0 s2 v2 stale 0"));
}

TEST(GraceProtocol, AnAbsentWorkerIsNotWaitedFor) {
  Driver driver = driver_of({ModeKind::quorum, 3, 1, kSomeGrace});
  EXPECT_THAT(driver.absent(1, 1), IsEmpty());
  EXPECT_THAT(driver.push(0, 1), ElementsAre("window b0 s1"));
  EXPECT_THAT(driver.absent(2, 1), ElementsAre("apply b0 v1 by 0", "answer w0 b0 s1 v1 stale 0",
                                               "answer w1 b0 s1 v1 stale 0", "answer w2 b0 s1 v1 stale 0"));
}

TEST(GraceProtocol, ATakeoverBeginsWithoutAWindow) {
  Driver primary = driver_of({ModeKind::quorum, 2, 1, kSomeGrace});
  primary.push(0, 1);
  BucketState state;
  primary.protocol.export_bucket(0, state);
  Driver backup({ModeKind::quorum, 2, 1, kSomeGrace}, 1, false);
  backup.protocol.import_bucket(0, state);
  for (const WorkerIndex worker : {0u, 1u}) backup.protocol.add_former_member(worker, kFirstIncarnation);
  EXPECT_THAT(backup.end_window(1), IsEmpty());
  EXPECT_THAT(backup.push(0, 1), ElementsAre("window b0 s1"));
  EXPECT_THAT(backup.end_window(1), ElementsAre("apply b0 v1 by 0", "answer w0 b0 s1 v1 stale 0"));
}

// ---- ssp ----

TEST(SspProtocol, AppliesAtOnceAndAnswersWhenTheSlowestIsNearEnough) {
  Driver driver = driver_of({ModeKind::ssp, 2, 1});
  EXPECT_THAT(driver.push(0, 1), ElementsAre("apply b0 v1 by 0", "answer w0 b0 s1 v1 stale 0"));
  EXPECT_THAT(driver.push(0, 2), ElementsAre("apply b0 v2 by 0"));
  EXPECT_THAT(driver.protocol.waiting_for(0), ElementsAre(1));
  EXPECT_THAT(driver.push(0, 2), IsEmpty()) << "a repeat, still too far ahead";
  EXPECT_THAT(driver.push(1, 1),
              ElementsAre("apply b0 v3 by 1", "answer w0 b0 s2 v3 stale 0", "answer w1 b0 s1 v3 stale 2"));
  EXPECT_THAT(driver.push(0, 2), ElementsAre("answer w0 b0 s2 v3 stale 0")) << "a repeat";
  EXPECT_THAT(driver.protocol.waiting_for(0), IsEmpty());
}

TEST(SspProtocol, ZeroIsABarrierAtEachStep) {
  Driver driver = driver_of({ModeKind::ssp, 2, 0});
  EXPECT_THAT(driver.push(1, 1), ElementsAre("apply b0 v1 by 1"));
  EXPECT_THAT(driver.push(0, 1),
              ElementsAre("apply b0 v2 by 0", "answer w0 b0 s1 v2 stale 1", "answer w1 b0 s1 v2 stale 0"));
}

TEST(SspProtocol, ALostWorkerHoldsNoWorkerBack) {
  Driver driver = driver_of({ModeKind::ssp, 3, 1}, 2);
  driver.push(0, 1, 0);
  EXPECT_THAT(driver.push(0, 2, 0), ElementsAre("apply b0 v2 by 0"));
  driver.push(2, 1, 0);
  EXPECT_THAT(driver.remove(1), ElementsAre("answer w0 b0 s2 v3 stale 0"));
  EXPECT_THAT(driver.push(0, 3, 0), ElementsAre("apply b0 v4 by 0"));
  EXPECT_THAT(driver.remove(2), ElementsAre("answer w0 b0 s3 v4 stale 1"));
}

TEST(SspProtocol, AHeldPushOfALostWorkerIsNotAnswered) {
  Driver driver = driver_of({ModeKind::ssp, 2, 0});
  driver.push(0, 1);
  driver.remove(0);
  EXPECT_THAT(driver.push(1, 1), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s1 v2 stale 1"));
}

/// tests/ps/prove found that the answer overtook the repetition of the push.
TEST(SspProtocol, AHeldPushIsNotAnsweredOverALaterConnection) {
  Driver driver({ModeKind::ssp, 2, 1}, 1);
  driver.protocol.add_worker(0, kFirstIncarnation);
  driver.protocol.add_worker(1, kFirstIncarnation);
  driver.push(0, 1);
  EXPECT_THAT(driver.push(0, 2), ElementsAre("apply b0 v2 by 0"));
  driver.protocol.reconnect_worker(0, kFirstIncarnation);
  EXPECT_THAT(driver.push(1, 1), ElementsAre("apply b0 v3 by 1", "answer w1 b0 s1 v3 stale 2"));
  EXPECT_THAT(driver.push(0, 2), ElementsAre("answer w0 b0 s2 v3 stale 0"));
}

TEST(SspProtocol, ALateOneBeginsWhereTheSlowestIs) {
  Driver driver = driver_of({ModeKind::ssp, 2, 2}, 2);
  for (const uint32_t bucket : {0u, 1u}) {
    for (uint64_t step = 1; step <= 3; ++step) {
      driver.push(0, step, bucket);
      driver.push(1, step, bucket);
    }
  }
  driver.push(0, 4, 0);
  driver.push(1, 4, 0);  // bucket 0 has four steps of all workers, bucket 1 three
  EXPECT_EQ(driver.protocol.next_step(), 4u);
  driver.protocol.add_worker(2, kFirstIncarnation);
  EXPECT_THAT(driver.push(2, 4, 0), ElementsAre("apply b0 v9 by 2", "answer w2 b0 s4 v9 stale 5"));
  EXPECT_THAT(driver.push(2, 4, 1), ElementsAre("apply b1 v7 by 2", "answer w2 b1 s4 v7 stale 3"));
  EXPECT_THAT(driver.push(2, 6, 0), ElementsAre("refuse w2 b0 s6")) << "only its first step is free";
}

TEST(SspProtocol, AWorkerWithoutADataPathHoldsUpNoStepAndBeginsWhereTheOthersAreThen) {
  Driver driver = driver_of({ModeKind::ssp, 2, 1});
  driver.remove(1);
  driver.protocol.add_worker(1, kSecondIncarnation);
  for (uint64_t step = 1; step <= 9; ++step) EXPECT_EQ(driver.push(0, step).size(), 2u) << step;
  EXPECT_THAT(driver.pull(1, 0, 0, kSecondIncarnation), ElementsAre("answer w1 b0 s0 v9 stale 0"));
  EXPECT_EQ(driver.actions.front().next_step, 10u);
  EXPECT_EQ(driver.push(0, 10).size(), 2u) << "within the bound";
  EXPECT_THAT(driver.push(0, 11), ElementsAre("apply b0 v11 by 0"));
  EXPECT_THAT(driver.push(1, 10, 0, kSecondIncarnation),
              ElementsAre("apply b0 v12 by 1", "answer w0 b0 s11 v12 stale 0", "answer w1 b0 s10 v12 stale 2"));
}

// ---- steps that are done ----

TEST(FinishedWorker, IsNotWaitedForAndMayPull) {
  Driver ssp = driver_of({ModeKind::ssp, 2, 0});
  EXPECT_THAT(ssp.push(1, 1), ElementsAre("apply b0 v1 by 1"));
  EXPECT_THAT(ssp.mark_finished(0), ElementsAre("answer w1 b0 s1 v1 stale 0"));
  EXPECT_THAT(ssp.push(1, 2), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s2 v2 stale 0"));
  EXPECT_THAT(ssp.pull(0), ElementsAre("answer w0 b0 s0 v2 stale 0"));

  Driver sync = driver_of({ModeKind::sync, 2, 0});
  sync.push(0, 1);
  sync.push(1, 1);
  EXPECT_THAT(sync.push(1, 2), IsEmpty());
  EXPECT_THAT(sync.mark_finished(0), ElementsAre("apply b0 v2 by 1", "answer w1 b0 s2 v2 stale 0"));
  EXPECT_THAT(sync.mark_finished(0), IsEmpty()) << "again";
  EXPECT_THAT(sync.push(0, 1), ElementsAre("answer w0 b0 s1 v2 stale 0")) << "a repeat";
  EXPECT_THAT(sync.push(0, 3), ElementsAre("refuse w0 b0 s3"));
  EXPECT_THAT(sync.remove(0), IsEmpty());
  EXPECT_THAT(sync.push(1, 3), ElementsAre("apply b0 v3 by 1", "answer w1 b0 s3 v3 stale 0"));
}

TEST(FinishedWorker, ItsNextIncarnationIsWaitedForAgain) {
  Driver driver = driver_of({ModeKind::sync, 2, 0});
  driver.mark_finished(0);
  driver.protocol.add_worker(0, kFirstIncarnation);
  EXPECT_THAT(driver.push(1, 1), ElementsAre("apply b0 v1 by 1", "answer w1 b0 s1 v1 stale 0"));
  driver.protocol.add_worker(0, kSecondIncarnation);
  driver.pull(0, 0, 0, kSecondIncarnation);
  EXPECT_THAT(driver.mark_finished(0, kFirstIncarnation), IsEmpty()) << "the previous incarnation";
  EXPECT_THAT(driver.push(1, 2), IsEmpty());
  EXPECT_THAT(driver.push(0, 2, 0, kSecondIncarnation),
              ElementsAre("apply b0 v2 by 0,1", "answer w0 b0 s2 v2 stale 0", "answer w1 b0 s2 v2 stale 0"));
}

}  // namespace
}  // namespace gradrail::ps
