#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ps/control/membership.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

class BarrierTest : public ::testing::Test {
 protected:
  static TimePoint at(Duration time) { return TimePoint() + time; }
  bool enter(WorkerIndex worker, uint64_t generation, bool live_only = false) {
    membership_.enter_barrier("b", generation, worker, 100 + worker);
    return is_complete("b", generation, live_only);
  }
  bool is_complete(const std::string& name, uint64_t generation, bool live_only) {
    return membership_.missing_at(name, generation, live_only, 1).empty();
  }
  void join(WorkerIndex worker) {
    const absl::Status joined = membership_.join(worker, 100 + worker, "host:" + std::to_string(worker), at(0s));
    ASSERT_TRUE(joined.ok()) << joined;
  }

  Membership membership_{{.worker_names = {"host:0", "host:1", "host:2"}}};
};

TEST_F(BarrierTest, IsCompleteWhenAllOfTheSpecificationHaveEntered) {
  join(0);
  join(1);
  EXPECT_FALSE(enter(0, 1));
  EXPECT_FALSE(enter(1, 1));
  EXPECT_THAT(membership_.barrier_missing("b", 1, false), ElementsAre("worker 2 (host:2)"));
  join(2);
  EXPECT_FALSE(enter(0, 1)) << "a repetition is harmless";
  EXPECT_TRUE(enter(2, 1));
  EXPECT_TRUE(enter(0, 1)) << "the others find it complete as well";
}

TEST_F(BarrierTest, GenerationsDoNotMix) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  enter(0, 1);
  enter(1, 1);
  EXPECT_TRUE(enter(2, 1));
  EXPECT_FALSE(enter(0, 2));
  EXPECT_TRUE(enter(1, 1)) << "a worker without the answer of the first";
  EXPECT_EQ(membership_.barrier_missing("b", 2, false).size(), 2u);
  EXPECT_TRUE(membership_.barrier_missing("b", 1, false).empty());
}

TEST_F(BarrierTest, EachNameIsABarrierOfItsOwn) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  enter(0, 1);
  enter(1, 1);
  membership_.enter_barrier("c", 1, 2, 102);
  EXPECT_FALSE(is_complete("b", 1, false));
  EXPECT_FALSE(is_complete("c", 1, false));
}

TEST_F(BarrierTest, DoesNotWaitForDepartedMembers) {
  for (WorkerIndex worker = 0; worker < 3; ++worker) join(worker);
  EXPECT_FALSE(enter(0, 1));
  membership_.leave(1, 101);
  EXPECT_FALSE(enter(0, 1));
  membership_.mark_lost(2, 102, "gone", at(1s));
  EXPECT_TRUE(enter(0, 1));
}

TEST_F(BarrierTest, LiveOnlyIgnoresWorkersThatNeverJoined) {
  join(0);
  EXPECT_TRUE(enter(0, 1, true));
  join(1);
  EXPECT_FALSE(enter(0, 2, true));
  EXPECT_TRUE(enter(1, 2, true));
}

TEST_F(BarrierTest, OnlyMembersEnter) {
  join(0);
  membership_.enter_barrier("b", 1, 0, 999);
  EXPECT_FALSE(is_complete("b", 1, true));
  EXPECT_TRUE(enter(0, 1, true));
}

TEST_F(BarrierTest, NamesTheFirstMissingAndCountsTheOthers) {
  for (WorkerIndex worker = 0; worker < 5; ++worker) join(worker);
  enter(1, 1);
  EXPECT_THAT(membership_.barrier_missing("b", 1, true, 2),
              ElementsAre("worker 0 (host:0)", "worker 2 (host:2)", "2 others"));
  EXPECT_THAT(membership_.barrier_missing("b", 1, true, 4).back(), "worker 4 (host:4)");
}

TEST_F(BarrierTest, ANewIncarnationHasEnteredNothing) {
  join(0);
  EXPECT_TRUE(enter(0, 1, true));
  membership_.leave(0, 100);
  ASSERT_TRUE(membership_.join(0, 7, "host:0", at(1s)).ok());
  EXPECT_EQ(membership_.barrier_missing("b", 1, true).size(), 1u);
}

}  // namespace
}  // namespace gradrail::ps
