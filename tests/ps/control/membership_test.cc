#include "ps/control/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "tests/ps/control/membership_fixture.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(MembershipTest, OneIncarnationOfAWorkerIsLive) {
  join(1);
  join(1);  // repeated
  EXPECT_THAT(membership_.live_names(), ElementsAre("worker 1 (host:1)"));
  const absl::Status second = membership_.join(1, 7, "elsewhere:1", at(1s));
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(message_of(second)), HasSubstr("worker 1 is already running (from host:1)"));
  EXPECT_TRUE(membership_.heard(1, 101, at(1s)).ok());
  EXPECT_TRUE(absl::IsUnavailable(membership_.heard(1, 7, at(1s)))) << "it has joined the process before this one";
}

TEST_F(MembershipTest, AnIndexIsFreeAfterLeaveAndAfterLoss) {
  join(0);
  membership_.leave(0, 100);
  EXPECT_TRUE(membership_.join(0, 1, "host:0", at(1s)).ok());
  EXPECT_TRUE(membership_.mark_lost(0, 1, "gone", at(1s)));
  EXPECT_TRUE(membership_.join(0, 2, "host:0", at(2s)).ok());
}

TEST_F(MembershipTest, TheLastMemberIsTheOneThatNoOtherCanFollow) {
  join(0);
  EXPECT_TRUE(membership_.is_last(0, 100));
  EXPECT_FALSE(membership_.is_last(0, 7)) << "another incarnation";
  EXPECT_FALSE(membership_.is_last(1, 101)) << "no member";
  join(1);
  EXPECT_FALSE(membership_.is_last(0, 100));
  EXPECT_TRUE(membership_.mark_away(1, 101, "searches for a ps", at(1s)));
  EXPECT_FALSE(membership_.is_last(0, 100)) << "it returns";
  EXPECT_TRUE(membership_.join(1, 101, "host:1", at(2s)).ok());
  membership_.leave(0, 100);
  EXPECT_TRUE(membership_.is_last(1, 101));
  membership_.abort_run("a test");
  EXPECT_FALSE(membership_.is_last(1, 101)) << "nothing is to be saved";
}

TEST_F(MembershipTest, OldIncarnationsChangeNothing) {
  join(0);
  membership_.leave(0, 100);
  ASSERT_TRUE(membership_.join(0, 5, "host:0", at(1s)).ok());
  membership_.leave(0, 100);
  EXPECT_FALSE(membership_.mark_lost(0, 100, "late news", at(1s)));
  EXPECT_FALSE(membership_.mark_lost(9, 1, "never was here", at(1s)));
  EXPECT_TRUE(membership_.heard(0, 5, at(1s)).ok());
}

TEST_F(MembershipTest, ALossIsReportedOnce) {
  join(0);
  EXPECT_TRUE(membership_.mark_lost(0, 100, "first", at(1s)));
  EXPECT_FALSE(membership_.mark_lost(0, 100, "second", at(1s)));
  EXPECT_TRUE(absl::IsNotFound(membership_.heard(0, 100, at(1s))));
}

TEST_F(MembershipTest, AMemberThatWasSilentMayJoinAgain) {
  join(0);
  join(1);
  ASSERT_TRUE(membership_.mark_lost(0, 100, "no heartbeat", at(1s)));
  membership_.mark_silent(0, 100, at(1s));
  EXPECT_EQ(membership_.heard(0, 100, at(2s)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(membership_.join(0, 5, "host:0", at(2s)).ok());
  EXPECT_TRUE(membership_.heard(0, 5, at(2s)).ok());
  EXPECT_TRUE(absl::IsNotFound(membership_.heard(0, 100, at(2s)))) << "another process has its place";
}

TEST(MembershipMinimum, ALossBelowTheMinimumAbortsForEverWithTheFirstReason) {
  Membership membership({.worker_names = {"host:0", "host:1", "host:2"}, .min_workers = 2});
  const TimePoint now = TimePoint() + 1s;
  for (WorkerIndex worker = 0; worker < 2; ++worker)
    ASSERT_TRUE(membership.join(worker, 100 + worker, "host:" + std::to_string(worker), now).ok());
  membership.mark_lost(1, 101, "its cable", now);
  EXPECT_EQ(membership.aborted(), "") << "worker 2 may still join";
  ASSERT_TRUE(membership.join(2, 102, "host:2", now).ok());
  membership.mark_lost(2, 102, "its fan", now);
  EXPECT_EQ(membership.aborted(),
            "worker 2 (host:2) was lost: its fan; 1 of the 2 workers that --min_workers requires remain");
  membership.mark_lost(0, 100, "another", now);
  EXPECT_THAT(membership.aborted(), HasSubstr("its fan"));
  EXPECT_TRUE(absl::IsAborted(membership.join(1, 7, "host:1", now)));
}

TEST_F(MembershipTest, AnAbortKeepsTheFirstReason) {
  join(0);
  EXPECT_TRUE(membership_.abort_run("shard 0: its GPU"));
  EXPECT_FALSE(membership_.abort_run("another"));
  EXPECT_EQ(membership_.aborted(), "shard 0: its GPU");
  EXPECT_TRUE(absl::IsAborted(membership_.join(1, 7, "host:1", at(1s))));
  EXPECT_FALSE(membership_.finished());  // worker 0 has not received the reason yet
  membership_.leave(0, 100);
  EXPECT_TRUE(membership_.finished());
}

TEST_F(MembershipTest, FinishedWhenAllHaveJoinedAndLeft) {
  EXPECT_FALSE(membership_.finished());
  join(0);
  join(1);
  membership_.leave(0, 100);
  membership_.leave(1, 101);
  EXPECT_FALSE(membership_.finished());
  EXPECT_THAT(membership_.never_joined(), ElementsAre("worker 2 (host:2)"));
  join(2);
  EXPECT_FALSE(membership_.finished());
  membership_.leave(2, 102);
  EXPECT_TRUE(membership_.finished());
}

/// The departure of another worker ended the ps while worker 0 searched for a lost ps.
TEST_F(MembershipTest, NotFinishedWhileAMemberIsAway) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  membership_.mark_away(0, 100, "ps 1 is gone", at(1s));
  membership_.leave(1, 101);
  membership_.leave(2, 102);
  EXPECT_FALSE(membership_.finished());
  membership_.abort_if_deserted(at(91s));
  EXPECT_EQ(membership_.aborted(), "");
  ASSERT_TRUE(membership_.join(0, 7, "host:0", at(91s)).ok());
  membership_.leave(0, 7);
  EXPECT_TRUE(membership_.finished());
}

TEST_F(MembershipTest, AMemberThatStaysAwayEndsTheRun) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  membership_.mark_away(0, 100, "ps 1 is gone", at(1s));
  membership_.leave(1, 101);
  membership_.leave(2, 102);
  EXPECT_TRUE(membership_.expire_absent(at(92s)));
  EXPECT_FALSE(membership_.finished());
  membership_.abort_if_deserted(at(123s));
  EXPECT_THAT(membership_.aborted(), HasSubstr("worker 0 (host:0) was lost"));
  EXPECT_TRUE(membership_.finished());
}

TEST_F(MembershipTest, ALostLastWorkerMayReturnWithinTheReturnLimit) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  membership_.leave(0, 100);
  membership_.leave(1, 101);
  membership_.mark_lost(2, 102, "gone", at(1s));
  membership_.abort_if_deserted(at(31s));
  EXPECT_FALSE(membership_.finished());
  EXPECT_EQ(membership_.aborted(), "");
  membership_.abort_if_deserted(at(32s));
  EXPECT_EQ(membership_.aborted(), "worker 2 (host:2) was lost: gone, and no worker remains");
  EXPECT_TRUE(membership_.finished());
}

TEST_F(MembershipTest, ARunIsNotDesertedIfItsLastWorkerHasLeft) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  membership_.mark_lost(2, 102, "gone", at(1s));
  membership_.leave(0, 100);
  membership_.leave(1, 101);
  EXPECT_TRUE(membership_.finished());
  membership_.abort_if_deserted(at(60s));
  EXPECT_EQ(membership_.aborted(), "");
}

TEST_F(MembershipTest, AContinuedRunWaitsTheReturnLimitForMissingWorkers) {
  join(1);
  membership_.mark_continued(at(1s));
  join(2);
  membership_.mark_continued(at(20s));
  EXPECT_FALSE(membership_.expire_absent(at(31s)));
  EXPECT_EQ(membership_.chief(), 0u) << "it may still join";
  membership_.enter_barrier("start", 1, 1, 101);
  membership_.enter_barrier("start", 1, 2, 102);
  EXPECT_FALSE(membership_.missing_at("start", 1, false, 1).empty());
  EXPECT_TRUE(membership_.expire_absent(at(32s)));
  EXPECT_EQ(membership_.departed(), std::vector<WorkerIndex>{0});
  EXPECT_FALSE(membership_.expire_absent(at(33s))) << "once";
  EXPECT_EQ(membership_.chief(), 1u);
  EXPECT_TRUE(membership_.missing_at("start", 1, false, 1).empty());
  membership_.leave(1, 101);
  EXPECT_FALSE(membership_.finished());
  membership_.leave(2, 102);
  EXPECT_TRUE(membership_.finished());
  EXPECT_EQ(membership_.aborted(), "");
}

TEST_F(MembershipTest, ALateReturnToAContinuedRunIsAccepted) {
  join(1);
  membership_.mark_continued(at(0s));
  EXPECT_TRUE(membership_.expire_absent(at(31s)));
  join(0);
  EXPECT_EQ(membership_.chief(), 0u);
  EXPECT_EQ(membership_.live_count(), 2u);
  membership_.leave(1, 101);
  EXPECT_FALSE(membership_.finished());
}

/// The workers pass on the names of lost workers: a restarted server continued without members that were about to return.
TEST_F(MembershipTest, OnlyTheLostThatHaveNotReturnedAreNamed) {
  join(0);
  join(1);
  membership_.mark_away(0, 100, "it searches", at(5s));
  membership_.mark_lost(1, 101, "killed", at(5s));
  const std::vector<Membership::Known> lost = membership_.lost_members();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].worker, 1u);
  EXPECT_EQ(lost[0].departed, "killed");
}

/// A primary that ends during the search of a worker: its backup awaits that worker, or a step would lack its gradient.
TEST_F(MembershipTest, ABackupAwaitsTheMembersThatAreAway) {
  join(0);
  join(1);
  membership_.mark_away(1, 101, "it searches", at(5s));
  Membership backup({.worker_names = {"host:0", "host:1"}, .min_workers = 1, .return_limit = 30s, .away_limit = 90s});
  backup.restore(membership_.known_members(), at(6s));
  EXPECT_THAT(backup.departed(), IsEmpty());
  EXPECT_EQ(backup.live_count(), 2u);
  EXPECT_TRUE(backup.join(1, 201, "host:1", at(7s)).ok());
}

TEST_F(MembershipTest, AnAbsentMemberExpiresAfterTheAwayLimit) {
  join(0);
  join(1);
  membership_.mark_away(1, 101, "ps 1 is gone", at(5s));
  EXPECT_FALSE(membership_.expire_absent(at(95s)));
  EXPECT_TRUE(membership_.expire_absent(at(96s)));
  EXPECT_EQ(membership_.departed(), std::vector<WorkerIndex>{1});
}

TEST_F(MembershipTest, AnAbsentMemberExpiresEarlierOnceTheServersAreBack) {
  join(0);
  join(1);
  membership_.mark_away(1, 101, "ps 1 is gone", at(5s));
  membership_.on_servers_back(at(7s));
  EXPECT_FALSE(membership_.expire_absent(at(37s)));
  EXPECT_TRUE(membership_.expire_absent(at(38s)));
}

TEST_F(MembershipTest, APauseOfThisProcessMakesNoMemberSilent) {
  join(0);
  membership_.add_pause(5s);
  EXPECT_THAT(membership_.silent_members(at(15s)), IsEmpty());
  EXPECT_EQ(membership_.silent_members(at(16s)).size(), 1u);
}

TEST_F(MembershipTest, ARunWaitsTheAwayLimitForSilentMembers) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  for (WorkerIndex worker = 0; worker < 3; ++worker)
    membership_.mark_lost(worker, 100 + worker, "no heartbeat", at(10s));
  membership_.mark_silent(2, 102, at(10s));
  membership_.abort_if_deserted(at(100s));
  EXPECT_EQ(membership_.aborted(), "");
  membership_.abort_if_deserted(at(101s));
  EXPECT_THAT(membership_.aborted(), HasSubstr("no worker remains"));
}

/// The steps that a disconnected worker still had to do were lost, because the others ended the run.
TEST_F(MembershipTest, AFinishedRunWaitsForASilentMember) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  membership_.mark_lost(1, 101, "no heartbeat", at(10s));
  membership_.mark_silent(1, 101, at(10s));
  membership_.mark_lost(2, 102, "its process ended", at(11s));
  membership_.mark_silent(2, 7, at(11s));  // another incarnation
  membership_.leave(0, 100);
  EXPECT_FALSE(membership_.finished());
  EXPECT_THAT(membership_.may_return(), ElementsAre("worker 1 (host:1)"));
  Membership unaware = membership_;  // the member leaves before a reply names it as lost
  unaware.leave(1, 101);
  EXPECT_TRUE(unaware.finished());
  ASSERT_TRUE(membership_.join(1, 8, "host:1", at(40s)).ok());
  EXPECT_FALSE(membership_.finished());
  membership_.leave(1, 8);
  EXPECT_TRUE(membership_.finished());
}

TEST_F(MembershipTest, AFinishedRunEndsWellWithoutASilentMemberAfterTheLimit) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  membership_.mark_lost(1, 101, "no heartbeat", at(10s));
  membership_.mark_silent(1, 101, at(10s));
  membership_.leave(0, 100);
  membership_.leave(2, 102);
  EXPECT_FALSE(membership_.expire_absent(at(100s)));
  EXPECT_FALSE(membership_.finished());
  EXPECT_FALSE(membership_.expire_absent(at(101s))) << "the loss is not a new one";
  membership_.abort_if_deserted(at(101s));
  EXPECT_TRUE(membership_.finished());
  EXPECT_EQ(membership_.aborted(), "");
}

TEST_F(MembershipTest, AMemberThatHasLeftIsKnown) {
  join(0);
  EXPECT_FALSE(membership_.has_left(0, 100));
  membership_.leave(0, 100);
  EXPECT_TRUE(membership_.has_left(0, 100));
  EXPECT_FALSE(membership_.has_left(0, 7));
}

TEST_F(MembershipTest, AnAbortedRunRestoresNoMember) {
  membership_.abort_run("deserted");
  membership_.restore({{0, 100, "host:0", ""}}, at(0s));
  EXPECT_TRUE(membership_.finished());
}

TEST_F(MembershipTest, WithParametersAnAbsentChiefIsReplaced) {
  membership_.mark_initialised(at(0s));
  join(1);
  EXPECT_FALSE(membership_.expire_absent(at(30s)));
  EXPECT_EQ(membership_.chief(), 0u);
  EXPECT_FALSE(membership_.expire_absent(at(31s))) << "the run still waits for it";
  EXPECT_EQ(membership_.chief(), 1u);
  join(0);
  EXPECT_EQ(membership_.chief(), 0u);
}

TEST_F(MembershipTest, AnExpectedMemberMayBeReplacedAfterATakeover) {
  membership_.restore({{0, 100, "host:0", ""}, {1, 101, "host:1", ""}}, at(0s));
  EXPECT_TRUE(membership_.heard(1, 101, at(1s)).ok());
  EXPECT_TRUE(membership_.join(0, 7, "host:0", at(1s)).ok()) << "it was lost together with the ps";
  EXPECT_TRUE(absl::IsAlreadyExists(membership_.join(1, 8, "host:1", at(1s))));
}

TEST_F(MembershipTest, AContinuedRunIsDesertedDespiteMissingWorkers) {
  join(0);
  membership_.mark_continued(at(0s));
  membership_.mark_lost(0, 100, "gone", at(1s));
  membership_.abort_if_deserted(at(31s));
  EXPECT_FALSE(membership_.finished());
  membership_.abort_if_deserted(at(32s));
  EXPECT_EQ(membership_.aborted(), "worker 0 (host:0) was lost: gone, and no worker remains");
}

TEST_F(MembershipTest, TheChiefIsTheLowestLiveOrMissingWorker) {
  EXPECT_EQ(membership_.chief(), 0u);
  join(1);
  EXPECT_EQ(membership_.chief(), 0u) << "it may still join";
  join(0);
  membership_.mark_lost(0, 100, "gone", at(1s));
  EXPECT_EQ(membership_.chief(), 1u);
  membership_.leave(1, 101);
  EXPECT_EQ(membership_.chief(), 2u) << "it may still join";
  join(2);
  join(5);
  EXPECT_EQ(membership_.chief(), 2u);
  membership_.leave(2, 102);
  EXPECT_EQ(membership_.chief(), 5u);
  ASSERT_TRUE(membership_.join(0, 7, "host:0", at(2s)).ok());
  EXPECT_EQ(membership_.chief(), 0u);
}

TEST_F(MembershipTest, EachChangeOfTheMembershipBeginsAnEpoch) {
  EXPECT_EQ(membership_.epoch(), 0u);
  join(0);
  join(1);
  EXPECT_EQ(membership_.epoch(), 2u);
  join(1);
  EXPECT_EQ(membership_.epoch(), 2u) << "the same incarnation";
  EXPECT_FALSE(membership_.join(1, 7, "elsewhere", at(1s)).ok());
  EXPECT_EQ(membership_.epoch(), 2u) << "refused";
  membership_.leave(0, 100);
  membership_.mark_lost(1, 101, "gone", at(1s));
  EXPECT_EQ(membership_.epoch(), 4u);
  membership_.mark_lost(1, 101, "again", at(1s));
  membership_.leave(0, 100);
  EXPECT_EQ(membership_.epoch(), 4u);
}

TEST_F(MembershipTest, WorkersBeyondTheSpecificationAreWaitedForWhileTheyAreLive) {
  for (WorkerIndex worker = 0; worker < 4; ++worker) join(worker);
  for (WorkerIndex worker = 0; worker < 3; ++worker) membership_.leave(worker, 100 + worker);
  EXPECT_FALSE(membership_.finished());
  EXPECT_EQ(membership_.name_of(3), "worker 3 (host:3)");
  membership_.leave(3, 103);
  EXPECT_TRUE(membership_.finished());
  EXPECT_EQ(membership_.name_of(8), "worker 8");
}

TEST_F(MembershipTest, AnAbsentMemberIsWaitedForLonger) {
  Membership membership({.worker_names = {"host:0"}, .min_workers = 1, .return_limit = 30s, .away_limit = 100s});
  ASSERT_TRUE(membership.join(0, 100, "host:0", at(0s)).ok());
  EXPECT_TRUE(membership.mark_away(0, 100, "ps 1 is gone", at(1s)));
  EXPECT_FALSE(membership.mark_away(0, 100, "again", at(1s)));
  EXPECT_EQ(membership.live_count(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(membership.heard(0, 100, at(2s)))) << "it may return, and is not lost";
  membership.abort_if_deserted(at(101s));
  EXPECT_FALSE(membership.finished());
  ASSERT_TRUE(membership.join(0, 101, "host:0", at(101s)).ok());
  membership.abort_if_deserted(at(200s));
  EXPECT_EQ(membership.aborted(), "");
  EXPECT_TRUE(membership.mark_away(0, 101, "ps 1 is gone", at(200s)));
  membership.abort_if_deserted(at(301s));
  EXPECT_EQ(membership.aborted(), "worker 0 (host:0) did not return: ps 1 is gone, and no worker remains");
}

TEST_F(MembershipTest, ARunThatIsTakenOverWaitsForMembersWithinAStep) {
  membership_.restore({{0, 100, "host:0", ""}, {1, 101, "host:1", ""}}, at(0s));
  ASSERT_TRUE(membership_.join(0, 100, "host:0", at(1s)).ok());
  EXPECT_TRUE(membership_.silent_members(at(5s)).empty());
  ASSERT_EQ(membership_.silent_members(at(12s)).size(), 1u) << "the usual limit applies after the first message";
  EXPECT_EQ(membership_.silent_members(at(12s))[0].member.worker, 0u);
  EXPECT_TRUE(membership_.heard(0, 100, at(34s)).ok());
  ASSERT_EQ(membership_.silent_members(at(41s)).size(), 1u);
  EXPECT_EQ(membership_.silent_members(at(41s))[0].member.worker, 1u);
}

TEST_F(MembershipTest, ATakeoverKeepsANewerIncarnation) {
  ASSERT_TRUE(membership_.join(0, 7, "host:0", at(0s)).ok());
  membership_.restore({{0, 100, "host:0", "gone"}, {1, 101, "host:1", "gone"}}, at(1s));
  EXPECT_TRUE(membership_.heard(0, 7, at(2s)).ok()) << "the loss of the older incarnation is no loss of this one";
  EXPECT_EQ(membership_.live_count(), 1u);
}

TEST_F(MembershipTest, ALossReachesTheBackupWithItsCause) {
  join(0);
  join(1);
  membership_.mark_lost(0, 100, "killed", at(1s));
  membership_.leave(1, 101);
  const std::vector<Membership::Known> known = membership_.known_members();
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].departed, "killed");
  EXPECT_EQ(known[1].departed, Membership::kLeft);
  join(0);
  EXPECT_DEATH(membership_.mark_lost(0, 100, "", at(2s)), "cause");
}

TEST(MembershipMinimum, ATakeoverDoesNotCountEarlierLossesAgain) {
  Membership membership({.worker_names = {"a", "b", "c"}, .min_workers = 2});
  membership.restore({{0, 100, "a", Membership::kLeft}, {1, 101, "b", ""}, {2, 102, "c", "gone"}}, TimePoint());
  EXPECT_EQ(membership.aborted(), "");
  EXPECT_EQ(membership.live_count(), 1u);
}

TEST(MembershipMinimum, AnAbsentMemberCountsForTheMinimum) {
  Membership membership({.worker_names = {"a", "b", "c"}, .min_workers = 2});
  for (WorkerIndex worker = 0; worker < 3; ++worker)
    ASSERT_TRUE(membership.join(worker, 100 + worker, "host", TimePoint()).ok());
  membership.mark_away(0, 100, "ps 1 is gone", TimePoint(1s));
  membership.mark_away(1, 101, "ps 1 is gone", TimePoint(1s));
  membership.mark_lost(2, 102, "gone", TimePoint(2s));
  EXPECT_EQ(membership.aborted(), "");
  membership.expire_absent(TimePoint(92s));
  EXPECT_THAT(membership.aborted(), HasSubstr("--min_workers")) << "two that did not return count as lost";
}

TEST_F(MembershipTest, AnAbortedRunIsFinishedWhenItsMembersHaveLeft) {
  join(0);
  join(1);
  membership_.abort_run("its GPU");
  membership_.leave(1, 101);
  EXPECT_FALSE(membership_.finished());
  membership_.leave(0, 100);
  EXPECT_TRUE(membership_.finished());
}

}  // namespace
}  // namespace gradrail::ps
