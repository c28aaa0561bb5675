#include "ps/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CoordinatorTest : public ::testing::Test {
 protected:
  static TimePoint at(Duration time) { return TimePoint() + time; }
  bool enter(WorkerIndex worker, uint64_t generation, bool live_only = false) {
    return coordinator_.enter_barrier("b", generation, live_only, worker, 100 + worker);
  }
  void join(WorkerIndex worker) {
    const absl::Status joined = coordinator_.join(worker, 100 + worker, "host:" + std::to_string(worker), at(0s));
    ASSERT_TRUE(joined.ok()) << joined;
  }

  Coordinator coordinator_{{.worker_names = {"host:0", "host:1", "host:2"}, .silence_limit = 10s}};
};

TEST_F(CoordinatorTest, OneIncarnationOfAWorkerIsLive) {
  join(1);
  const absl::Status second = coordinator_.join(1, 7, "elsewhere:1", at(1s));
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(message_of(second)), HasSubstr("worker 1 is already running (from host:1)"));
  EXPECT_TRUE(coordinator_.heard(1, 101, at(1s)).ok());
  EXPECT_TRUE(absl::IsUnavailable(coordinator_.heard(1, 7, at(1s)))) << "it has joined another life of this ps";
}

TEST_F(CoordinatorTest, TheSameIncarnationMayRepeatItsJoin) {
  join(1);
  join(1);
  EXPECT_THAT(coordinator_.live_names(), ElementsAre("worker 1 (host:1)"));
}

TEST_F(CoordinatorTest, PlaceIsFreeAfterLeaveAndAfterLoss) {
  join(0);
  coordinator_.leave(0, 100);
  EXPECT_TRUE(coordinator_.join(0, 1, "host:0", at(1s)).ok());
  EXPECT_TRUE(coordinator_.lost(0, 1, "gone", at(1s)));
  EXPECT_TRUE(coordinator_.join(0, 2, "host:0", at(2s)).ok());
}

TEST_F(CoordinatorTest, OldIncarnationsChangeNothing) {
  join(0);
  coordinator_.leave(0, 100);
  ASSERT_TRUE(coordinator_.join(0, 5, "host:0", at(1s)).ok());
  coordinator_.leave(0, 100);
  EXPECT_FALSE(coordinator_.lost(0, 100, "late news", at(1s)));
  EXPECT_FALSE(coordinator_.lost(9, 1, "never was here", at(1s)));
  EXPECT_TRUE(coordinator_.heard(0, 5, at(1s)).ok());
}

TEST_F(CoordinatorTest, LossIsToldOnce) {
  join(0);
  EXPECT_TRUE(coordinator_.lost(0, 100, "first", at(1s)));
  EXPECT_FALSE(coordinator_.lost(0, 100, "second", at(1s)));
  EXPECT_TRUE(absl::IsNotFound(coordinator_.heard(0, 100, at(1s))));
}

TEST(CoordinatorMinimum, ALossThatLeavesFewerAbortsForEverWithTheFirstReason) {
  Coordinator coordinator({.worker_names = {"host:0", "host:1", "host:2"}, .min_workers = 2});
  const TimePoint now = TimePoint() + 1s;
  for (WorkerIndex worker = 0; worker < 2; ++worker)
    ASSERT_TRUE(coordinator.join(worker, 100 + worker, "host:" + std::to_string(worker), now).ok());
  coordinator.lost(1, 101, "its cable", now);
  EXPECT_EQ(coordinator.aborted(), "") << "worker 2 is still to come";
  ASSERT_TRUE(coordinator.join(2, 102, "host:2", now).ok());
  coordinator.lost(2, 102, "its fan", now);
  EXPECT_EQ(coordinator.aborted(),
            "worker 2 (host:2) was lost: its fan; 1 of the 2 workers that --min_workers asks for are left");
  coordinator.lost(0, 100, "another", now);
  EXPECT_THAT(coordinator.aborted(), HasSubstr("its fan"));
  EXPECT_TRUE(absl::IsAborted(coordinator.join(1, 7, "host:1", now)));
}

TEST_F(CoordinatorTest, LossAbortsNothing) {
  join(0);
  coordinator_.lost(0, 100, "its cable", at(1s));
  EXPECT_EQ(coordinator_.aborted(), "");
}

TEST_F(CoordinatorTest, GivingUpAbortsAnyModeWithTheFirstReason) {
  join(0);
  EXPECT_TRUE(coordinator_.give_up("shard 0: its GPU"));
  EXPECT_FALSE(coordinator_.give_up("another"));
  EXPECT_EQ(coordinator_.aborted(), "shard 0: its GPU");
  EXPECT_TRUE(absl::IsAborted(coordinator_.join(1, 7, "host:1", at(1s))));
  EXPECT_FALSE(coordinator_.finished());  // worker 0 is still to hear of it
  coordinator_.leave(0, 100);
  EXPECT_TRUE(coordinator_.finished());
}

TEST_F(CoordinatorTest, LeavingAbortsNothing) {
  join(0);
  coordinator_.leave(0, 100);
  EXPECT_EQ(coordinator_.aborted(), "");
  EXPECT_FALSE(coordinator_.lost(0, 100, "its heartbeat ended", at(1s)));
  EXPECT_EQ(coordinator_.aborted(), "");
}

TEST_F(CoordinatorTest, SilenceCountsFromTheLastSign) {
  join(0);
  join(1);
  ASSERT_TRUE(coordinator_.heard(1, 101, at(5s)).ok());
  EXPECT_THAT(coordinator_.silent(at(10s)), IsEmpty());
  const std::vector<Coordinator::Member> silent = coordinator_.silent(at(10s + 1ms));
  ASSERT_EQ(silent.size(), 1u);
  EXPECT_EQ(silent[0].worker, 0u);
  EXPECT_EQ(silent[0].incarnation, 100u);
  EXPECT_EQ(coordinator_.silent(at(16s)).size(), 2u);
  coordinator_.leave(0, 100);
  coordinator_.lost(1, 101, "silent", at(1s));
  EXPECT_THAT(coordinator_.silent(at(60s)), IsEmpty());
}

TEST_F(CoordinatorTest, BarrierIsCompleteWhenAllOfTheSpecificationAreThere) {
  join(0);
  join(1);
  EXPECT_FALSE(enter(0, 1));
  EXPECT_FALSE(enter(1, 1));
  EXPECT_THAT(coordinator_.barrier_missing("b", 1, false), ElementsAre("worker 2 (host:2)"));
  join(2);
  EXPECT_FALSE(enter(0, 1)) << "entering again is harmless";
  EXPECT_TRUE(enter(2, 1));
  EXPECT_TRUE(enter(0, 1)) << "all others hear of it too";
}

TEST_F(CoordinatorTest, GenerationsDoNotMix) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  enter(0, 1);
  enter(1, 1);
  EXPECT_TRUE(enter(2, 1));
  EXPECT_FALSE(enter(0, 2));
  EXPECT_TRUE(enter(1, 1)) << "one who has not yet heard of the end of the first";
  EXPECT_EQ(coordinator_.barrier_missing("b", 2, false).size(), 2u);
  EXPECT_TRUE(coordinator_.barrier_missing("b", 1, false).empty());
}

TEST_F(CoordinatorTest, NamesAreBarriersOfTheirOwn) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  enter(0, 1);
  enter(1, 1);
  EXPECT_FALSE(coordinator_.enter_barrier("c", 1, false, 2, 102));
}

TEST_F(CoordinatorTest, BarrierDoesNotWaitForWhoLeftOrWasLost) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  EXPECT_FALSE(enter(0, 1));
  coordinator_.leave(1, 101);
  EXPECT_FALSE(enter(0, 1));
  coordinator_.lost(2, 102, "gone", at(1s));
  EXPECT_TRUE(enter(0, 1));
}

TEST_F(CoordinatorTest, BarrierOfTheLivingIgnoresWhoNeverCame) {
  join(0);
  EXPECT_TRUE(enter(0, 1, true));
  join(1);
  EXPECT_FALSE(enter(0, 2, true));
  EXPECT_TRUE(enter(1, 2, true));
}

TEST_F(CoordinatorTest, StrangersDoNotEnter) {
  join(0);
  EXPECT_FALSE(coordinator_.enter_barrier("b", 1, true, 0, 999));
  EXPECT_TRUE(enter(0, 1, true));
}

TEST_F(CoordinatorTest, ANewIncarnationHasEnteredNothing) {
  join(0);
  EXPECT_TRUE(enter(0, 1, true));
  coordinator_.leave(0, 100);
  ASSERT_TRUE(coordinator_.join(0, 7, "host:0", at(1s)).ok());
  EXPECT_EQ(coordinator_.barrier_missing("b", 1, true).size(), 1u);
}

TEST_F(CoordinatorTest, FinishedWhenAllHaveBeenHereAndNobodyIsLeft) {
  EXPECT_FALSE(coordinator_.finished());
  join(0);
  join(1);
  coordinator_.leave(0, 100);
  coordinator_.leave(1, 101);
  EXPECT_FALSE(coordinator_.finished());
  EXPECT_THAT(coordinator_.never_joined(), ElementsAre("worker 2 (host:2)"));
  join(2);
  EXPECT_FALSE(coordinator_.finished());
  coordinator_.leave(2, 102);
  EXPECT_TRUE(coordinator_.finished());
}

TEST_F(CoordinatorTest, ALostLastWorkerMayComeBackForAWhile) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  coordinator_.leave(0, 100);
  coordinator_.leave(1, 101);
  coordinator_.lost(2, 102, "gone", at(1s));
  coordinator_.give_up_deserted(at(31s));
  EXPECT_FALSE(coordinator_.finished());
  EXPECT_EQ(coordinator_.aborted(), "");
  coordinator_.give_up_deserted(at(32s));
  EXPECT_EQ(coordinator_.aborted(), "worker 2 (host:2) was lost: gone, and nobody is left");
  EXPECT_TRUE(coordinator_.finished());
}

TEST_F(CoordinatorTest, ARunIsNotDesertedWhoseLastWorkerSaidGoodbye) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  coordinator_.lost(2, 102, "gone", at(1s));
  coordinator_.leave(0, 100);
  coordinator_.leave(1, 101);
  EXPECT_TRUE(coordinator_.finished());
  coordinator_.give_up_deserted(at(60s));
  EXPECT_EQ(coordinator_.aborted(), "");
}

TEST_F(CoordinatorTest, ARunThatGoesOnWaitsAWhileForThoseWhoMayHaveLeftBefore) {
  join(1);
  coordinator_.goes_on(at(1s));
  join(2);
  coordinator_.goes_on(at(20s));
  EXPECT_FALSE(coordinator_.give_up_missing(at(31s)));
  EXPECT_EQ(coordinator_.chief(), 0u) << "it may be on its way";
  EXPECT_FALSE(coordinator_.enter_barrier("start", 1, false, 1, 101) ||
               coordinator_.enter_barrier("start", 1, false, 2, 102));
  EXPECT_TRUE(coordinator_.give_up_missing(at(32s)));
  EXPECT_EQ(coordinator_.gone(), std::vector<WorkerIndex>{0});
  EXPECT_FALSE(coordinator_.give_up_missing(at(33s))) << "once";
  EXPECT_EQ(coordinator_.chief(), 1u);
  EXPECT_TRUE(coordinator_.enter_barrier("start", 1, false, 1, 101));
  coordinator_.leave(1, 101);
  EXPECT_FALSE(coordinator_.finished());
  coordinator_.leave(2, 102);
  EXPECT_TRUE(coordinator_.finished());
  EXPECT_EQ(coordinator_.aborted(), "");
}

TEST_F(CoordinatorTest, WhoComesBackLateToARunThatGoesOnIsWelcome) {
  join(1);
  coordinator_.goes_on(at(0s));
  EXPECT_TRUE(coordinator_.give_up_missing(at(31s)));
  join(0);
  EXPECT_EQ(coordinator_.chief(), 0u);
  EXPECT_EQ(coordinator_.live_count(), 2u);
  coordinator_.leave(1, 101);
  EXPECT_FALSE(coordinator_.finished());
}

TEST_F(CoordinatorTest, WhoLooksForAPsAndDoesNotComeBackIsGone) {
  join(0);
  join(1);
  coordinator_.away(1, 101, "ps 1 is gone", at(5s));
  EXPECT_FALSE(coordinator_.give_up_missing(at(95s)));
  EXPECT_TRUE(coordinator_.give_up_missing(at(96s)));
  EXPECT_EQ(coordinator_.gone(), std::vector<WorkerIndex>{1});
}

TEST_F(CoordinatorTest, WhoKnowsThatTheServersAreBackComesSoonOrNever) {
  join(0);
  join(1);
  coordinator_.away(1, 101, "ps 1 is gone", at(5s));
  coordinator_.servers_are_back(at(7s));
  EXPECT_FALSE(coordinator_.give_up_missing(at(37s)));
  EXPECT_TRUE(coordinator_.give_up_missing(at(38s)));
}

TEST_F(CoordinatorTest, WhoeverCouldNotBeHeardIsNotSilent) {
  join(0);
  coordinator_.stood_still(5s);
  EXPECT_THAT(coordinator_.silent(at(15s)), IsEmpty());
  EXPECT_EQ(coordinator_.silent(at(16s)).size(), 1u);
}

TEST_F(CoordinatorTest, TheSilentMayBeCutOffAndAreWaitedForLonger) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  for (WorkerIndex worker = 0; worker < 3; ++worker)
    coordinator_.lost(worker, 100 + worker, "no sign of life", at(10s));
  coordinator_.wait_for_the_silent(at(10s));
  coordinator_.give_up_deserted(at(100s));
  EXPECT_EQ(coordinator_.aborted(), "");
  coordinator_.give_up_deserted(at(101s));
  EXPECT_THAT(coordinator_.aborted(), HasSubstr("nobody is left"));
}

TEST_F(CoordinatorTest, WhoHasSaidGoodbyeIsKnownToHave) {
  join(0);
  EXPECT_FALSE(coordinator_.has_left(0, 100));
  coordinator_.leave(0, 100);
  EXPECT_TRUE(coordinator_.has_left(0, 100));
  EXPECT_FALSE(coordinator_.has_left(0, 7));
}

TEST_F(CoordinatorTest, AnAbortedRunBringsNobodyBack) {
  coordinator_.give_up("deserted");
  coordinator_.restore({{0, 100, "host:0", ""}}, at(0s));
  EXPECT_TRUE(coordinator_.finished());
}

TEST_F(CoordinatorTest, WhereThereAreParametersAnAbsentWorkerIsNotTheChiefForEver) {
  coordinator_.has_parameters(at(0s));
  join(1);
  EXPECT_FALSE(coordinator_.give_up_missing(at(30s)));
  EXPECT_EQ(coordinator_.chief(), 0u);
  EXPECT_FALSE(coordinator_.give_up_missing(at(31s))) << "it is still waited for";
  EXPECT_EQ(coordinator_.chief(), 1u);
  join(0);
  EXPECT_EQ(coordinator_.chief(), 0u);
}

TEST_F(CoordinatorTest, WhoIsExpectedAfterATakeoverMayBeReplaced) {
  coordinator_.restore({{0, 100, "host:0", ""}, {1, 101, "host:1", ""}}, at(0s));
  EXPECT_TRUE(coordinator_.heard(1, 101, at(1s)).ok());
  EXPECT_TRUE(coordinator_.join(0, 7, "host:0", at(1s)).ok()) << "it died together with the ps";
  EXPECT_TRUE(absl::IsAlreadyExists(coordinator_.join(1, 8, "host:1", at(1s))));
}

TEST_F(CoordinatorTest, ARunThatGoesOnIsDesertedWhoeverIsMissing) {
  join(0);
  coordinator_.goes_on(at(0s));
  coordinator_.lost(0, 100, "gone", at(1s));
  coordinator_.give_up_deserted(at(31s));
  EXPECT_FALSE(coordinator_.finished());
  coordinator_.give_up_deserted(at(32s));
  EXPECT_EQ(coordinator_.aborted(), "worker 0 (host:0) was lost: gone, and nobody is left");
}

TEST_F(CoordinatorTest, TheChiefIsTheLowestLiveWorkerOrOneToCome) {
  EXPECT_EQ(coordinator_.chief(), 0u);
  join(1);
  EXPECT_EQ(coordinator_.chief(), 0u) << "it is still to come";
  join(0);
  coordinator_.lost(0, 100, "gone", at(1s));
  EXPECT_EQ(coordinator_.chief(), 1u);
  coordinator_.leave(1, 101);
  EXPECT_EQ(coordinator_.chief(), 2u) << "it is still to come";
  join(2);
  join(5);
  EXPECT_EQ(coordinator_.chief(), 2u);
  coordinator_.leave(2, 102);
  EXPECT_EQ(coordinator_.chief(), 5u);
  ASSERT_TRUE(coordinator_.join(0, 7, "host:0", at(2s)).ok());
  EXPECT_EQ(coordinator_.chief(), 0u);
}

TEST_F(CoordinatorTest, EachChangeOfTheMembershipIsAnEpoch) {
  EXPECT_EQ(coordinator_.epoch(), 0u);
  join(0);
  join(1);
  EXPECT_EQ(coordinator_.epoch(), 2u);
  join(1);
  EXPECT_EQ(coordinator_.epoch(), 2u) << "the same incarnation";
  EXPECT_FALSE(coordinator_.join(1, 7, "elsewhere", at(1s)).ok());
  EXPECT_EQ(coordinator_.epoch(), 2u) << "refused";
  coordinator_.leave(0, 100);
  coordinator_.lost(1, 101, "gone", at(1s));
  EXPECT_EQ(coordinator_.epoch(), 4u);
  coordinator_.lost(1, 101, "again", at(1s));
  coordinator_.leave(0, 100);
  EXPECT_EQ(coordinator_.epoch(), 4u);
}

TEST_F(CoordinatorTest, WorkersBeyondTheSpecificationAreWaitedForWhileTheyAreHere) {
  for (WorkerIndex worker = 0; worker < 4; ++worker) join(worker);
  for (WorkerIndex worker = 0; worker < 3; ++worker) coordinator_.leave(worker, 100 + worker);
  EXPECT_FALSE(coordinator_.finished());
  EXPECT_EQ(coordinator_.name_of(3), "worker 3 (host:3)");
  coordinator_.leave(3, 103);
  EXPECT_TRUE(coordinator_.finished());
  EXPECT_EQ(coordinator_.name_of(8), "worker 8");
}

TEST_F(CoordinatorTest, WhoGoesToLookForAPsIsWaitedForLonger) {
  Coordinator coordinator({.worker_names = {"host:0"}, .min_workers = 1, .return_limit = 30s, .away_limit = 100s});
  ASSERT_TRUE(coordinator.join(0, 100, "host:0", at(0s)).ok());
  EXPECT_TRUE(coordinator.away(0, 100, "ps 1 is gone", at(1s)));
  EXPECT_FALSE(coordinator.away(0, 100, "again", at(1s)));
  EXPECT_EQ(coordinator.live_count(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(coordinator.heard(0, 100, at(2s)))) << "it may come back, and is not lost";
  coordinator.give_up_deserted(at(101s));
  EXPECT_FALSE(coordinator.finished());
  ASSERT_TRUE(coordinator.join(0, 101, "host:0", at(101s)).ok());
  coordinator.give_up_deserted(at(200s));
  EXPECT_EQ(coordinator.aborted(), "");
  EXPECT_TRUE(coordinator.away(0, 101, "ps 1 is gone", at(200s)));
  coordinator.give_up_deserted(at(301s));
  EXPECT_EQ(coordinator.aborted(), "worker 0 (host:0) did not come back: ps 1 is gone, and nobody is left");
}

TEST_F(CoordinatorTest, ARunThatIsTakenOverWaitsForWhoIsInTheMiddleOfAStep) {
  coordinator_.restore({{0, 100, "host:0", ""}, {1, 101, "host:1", ""}}, at(0s));
  ASSERT_TRUE(coordinator_.join(0, 100, "host:0", at(1s)).ok());
  EXPECT_TRUE(coordinator_.silent(at(5s)).empty());
  ASSERT_EQ(coordinator_.silent(at(12s)).size(), 1u) << "who has come is as anybody";
  EXPECT_EQ(coordinator_.silent(at(12s))[0].worker, 0u);
  EXPECT_TRUE(coordinator_.heard(0, 100, at(34s)).ok());
  ASSERT_EQ(coordinator_.silent(at(41s)).size(), 1u);
  EXPECT_EQ(coordinator_.silent(at(41s))[0].worker, 1u);
}

TEST(CoordinatorMinimum, ARunThatWentOnIsTakenOverWithoutAnotherVerdict) {
  Coordinator coordinator({.worker_names = {"a", "b", "c"}, .min_workers = 2});
  coordinator.restore({{0, 100, "a", Coordinator::kLeft}, {1, 101, "b", ""}, {2, 102, "c", "gone"}}, TimePoint());
  EXPECT_EQ(coordinator.aborted(), "");
  EXPECT_EQ(coordinator.live_count(), 1u);
}

TEST(CoordinatorMinimum, WhoLooksForAPsIsNotMissing) {
  Coordinator coordinator({.worker_names = {"a", "b", "c"}, .min_workers = 2});
  for (WorkerIndex worker = 0; worker < 3; ++worker)
    ASSERT_TRUE(coordinator.join(worker, 100 + worker, "somebody", TimePoint()).ok());
  coordinator.away(0, 100, "ps 1 is gone", TimePoint(1s));
  coordinator.away(1, 101, "ps 1 is gone", TimePoint(1s));
  coordinator.lost(2, 102, "gone", TimePoint(2s));
  EXPECT_EQ(coordinator.aborted(), "");
  coordinator.give_up_missing(TimePoint(92s));
  EXPECT_THAT(coordinator.aborted(), HasSubstr("--min_workers")) << "two that did not come back are";
}

TEST_F(CoordinatorTest, AbortedRunIsFinishedWhenTheLivingHaveGone) {
  join(0);
  join(1);
  coordinator_.give_up("its GPU");
  coordinator_.leave(1, 101);
  EXPECT_FALSE(coordinator_.finished());
  coordinator_.leave(0, 100);
  EXPECT_TRUE(coordinator_.finished());
}

}  // namespace
}  // namespace gradrail::ps
