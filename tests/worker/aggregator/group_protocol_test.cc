// Tests which requests of a group are summed, when they leave, and which workers an answer is for.
#include "worker/aggregator/group_protocol.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradrail::aggregator {
namespace {

using ps::ArrivalKind;
using testing::Eq;
using testing::Optional;

constexpr uint32_t kBucket = 0;

class GroupOfThree : public testing::Test {
 protected:
  GroupOfThree() : protocol_(2) {
    for (uint32_t slot = 0; slot < 3; ++slot) protocol_.join(slot);
  }

  bool push(uint32_t slot, uint64_t step, uint32_t bucket = kBucket) {
    return protocol_.on_request(slot, bucket, {ArrivalKind::push, step, step - 1});
  }
  bool pull(uint32_t slot) { return protocol_.on_request(slot, kBucket, {ArrivalKind::pull, 7, 0}); }
  bool offer(uint32_t slot) { return protocol_.on_request(slot, kBucket, {ArrivalKind::initialise, 7, 0}); }
  /// The members of the request that leaves; 0: none.
  uint64_t leaves(uint32_t bucket = kBucket) {
    const auto next = protocol_.forward(bucket);
    if (!next.has_value()) return 0;
    last_ = *next;
    return next->members;
  }

  GroupProtocol protocol_;
  GroupProtocol::Forward last_;
};

TEST_F(GroupOfThree, PushesLeaveTogether) {
  push(0, 1);
  push(2, 1);
  EXPECT_EQ(leaves(), 0u);
  push(1, 1);
  EXPECT_EQ(leaves(), 0b111u);
  EXPECT_EQ(last_.kind, ArrivalKind::push);
  EXPECT_EQ(last_.step, 1u);
  EXPECT_EQ(leaves(), 0u) << "it is under way";
  EXPECT_THAT(protocol_.on_answer(kBucket, 1, 1), Optional(Eq(0b111u)));
  EXPECT_FALSE(protocol_.on_answer(kBucket, 1, 1).has_value()) << "it was answered";
}

TEST_F(GroupOfThree, TheLowestStepLeavesFirst) {
  push(0, 2);
  push(1, 1);
  push(2, 2);
  EXPECT_EQ(leaves(), 0b010u);
  EXPECT_THAT(protocol_.on_answer(kBucket, 1, 1), Optional(Eq(0b010u)));
  EXPECT_EQ(leaves(), 0u);
  push(1, 2);
  EXPECT_EQ(leaves(), 0b111u);
}

TEST_F(GroupOfThree, APushUnderWayIsNotRepeated) {
  for (uint32_t slot = 0; slot < 3; ++slot) push(slot, 1);
  ASSERT_EQ(leaves(), 0b111u);
  EXPECT_FALSE(push(1, 1));
}

TEST_F(GroupOfThree, AWorkerThatLeavesIsNotAwaited) {
  push(0, 1);
  push(2, 1);
  protocol_.leave(1);
  EXPECT_EQ(leaves(), 0b101u);
}

TEST_F(GroupOfThree, AWorkerThatLeavesGetsNoAnswer) {
  for (uint32_t slot = 0; slot < 3; ++slot) push(slot, 1);
  ASSERT_EQ(leaves(), 0b111u);
  protocol_.leave(1);
  EXPECT_THAT(protocol_.on_answer(kBucket, 1, 1), Optional(Eq(0b101u)));
}

TEST_F(GroupOfThree, AWorkerThatReturnsRepeatsItsPush) {
  for (uint32_t slot = 0; slot < 3; ++slot) push(slot, 1);
  ASSERT_EQ(leaves(), 0b111u);
  protocol_.leave(1);
  protocol_.join(1);
  EXPECT_TRUE(push(1, 1));
  EXPECT_THAT(protocol_.on_answer(kBucket, 1, 1), Optional(Eq(0b101u)));
  EXPECT_EQ(leaves(), 0b010u) << "the step is applied: the shard answers it again";
}

TEST_F(GroupOfThree, AFinishedWorkerIsNotAwaitedAndMayPull) {
  protocol_.finish(2);
  push(0, 1);
  push(1, 1);
  EXPECT_EQ(leaves(), 0b011u);
  EXPECT_TRUE(pull(2));
  EXPECT_EQ(leaves(), 0u);
  protocol_.on_answer(kBucket, 1, 1);
  EXPECT_EQ(leaves(), 0b100u);
  EXPECT_EQ(last_.kind, ArrivalKind::pull);
}

TEST_F(GroupOfThree, PullsLeaveAtOnceAndTogether) {
  pull(1);
  EXPECT_EQ(leaves(), 0b010u);
  const uint64_t first = last_.step;
  pull(0);
  pull(2);
  EXPECT_EQ(leaves(), 0u);
  EXPECT_THAT(protocol_.on_answer(kBucket, first, 0), Optional(Eq(0b010u)));
  EXPECT_EQ(leaves(), 0b101u);
  EXPECT_NE(last_.step, first);
}

TEST_F(GroupOfThree, InitialValuesReplaceAPullUnderWay) {
  pull(1);
  ASSERT_EQ(leaves(), 0b010u);
  const uint64_t pulled = last_.step;
  offer(0);
  EXPECT_EQ(leaves(), 0b001u);
  EXPECT_EQ(last_.kind, ArrivalKind::initialise);
  EXPECT_FALSE(protocol_.on_answer(kBucket, pulled, 0).has_value());
  EXPECT_THAT(protocol_.on_answer(kBucket, last_.step, 0), Optional(Eq(0b001u)));
  EXPECT_EQ(leaves(), 0b010u) << "the pull leaves again";
}

TEST_F(GroupOfThree, WhatIsUnderWayLeavesAgainAfterALoss) {
  for (uint32_t slot = 0; slot < 3; ++slot) push(slot, 4);
  ASSERT_EQ(leaves(), 0b111u);
  protocol_.leave(0);
  protocol_.on_shard_lost();
  EXPECT_EQ(leaves(), 0b110u);
  EXPECT_EQ(last_.step, 4u);
}

TEST_F(GroupOfThree, AWorkerThatJoinsHoldsTheStepUntilItHasPushed) {
  for (uint32_t slot = 0; slot < 3; ++slot) push(slot, 4);
  ASSERT_EQ(leaves(), 0b111u);
  protocol_.join(3);
  protocol_.on_shard_lost();
  EXPECT_EQ(leaves(), 0u);
  pull(3);
  EXPECT_EQ(leaves(), 0b1000u);
  protocol_.on_answer(kBucket, last_.step, 3);
  push(3, 4);
  EXPECT_EQ(leaves(), 0b1111u);
}

TEST_F(GroupOfThree, AProbeShowsThatAStepIsApplied) {
  // Worker 0 had the answer over its former path. It pushes the next step when the others have theirs.
  push(1, 5);
  push(2, 5);
  EXPECT_EQ(leaves(), 0u);
  const auto probe = protocol_.probe(kBucket);
  ASSERT_TRUE(probe.has_value());
  EXPECT_EQ(probe->kind, ArrivalKind::pull);
  EXPECT_EQ(probe->members, 0b010u);
  EXPECT_FALSE(protocol_.on_answer(kBucket, probe->step, 4).has_value());
  EXPECT_EQ(leaves(), 0u) << "not applied yet";
  const auto again = protocol_.probe(kBucket);
  ASSERT_TRUE(again.has_value());
  EXPECT_FALSE(protocol_.on_answer(kBucket, again->step, 5).has_value());
  EXPECT_EQ(leaves(), 0b110u);
}

TEST_F(GroupOfThree, NoProbeInAGroupThatHasPushedTogether) {
  for (uint32_t slot = 0; slot < 3; ++slot) push(slot, 1);
  ASSERT_EQ(leaves(), 0b111u);
  protocol_.on_answer(kBucket, 1, 1);
  push(0, 2);
  EXPECT_FALSE(protocol_.probe(kBucket).has_value());
  protocol_.join(3);
  EXPECT_TRUE(protocol_.probe(kBucket).has_value());
}

TEST_F(GroupOfThree, PayloadsOfOnePlaceLeaveInTheirOrder) {
  protocol_.set_places({1, std::nullopt});  // bucket 1 first, then bucket 0
  EXPECT_THAT(protocol_.at_place_of(0), testing::ElementsAre(1, 0));
  for (uint32_t slot = 0; slot < 3; ++slot) push(slot, 1, 0);
  push(0, 1, 1);
  EXPECT_EQ(leaves(0), 0u) << "bucket 1 of this step waits";
  push(1, 1, 1);
  push(2, 1, 1);
  EXPECT_EQ(leaves(1), 0b111u);
  EXPECT_EQ(leaves(0), 0u) << "the place is in use";
  protocol_.on_answer(1, 1, 1);
  EXPECT_EQ(leaves(0), 0b111u);
}

TEST_F(GroupOfThree, InitialValuesReplaceAPullAtTheirPlace) {
  protocol_.set_places({1, std::nullopt});
  pull(1);
  ASSERT_EQ(leaves(0), 0b010u);
  protocol_.on_request(0, 1, {ArrivalKind::initialise, 7, 0});
  EXPECT_EQ(leaves(1), 0b001u);
  EXPECT_EQ(leaves(0), 0u) << "the place is in use";
  protocol_.on_answer(1, last_.step, 0);
  EXPECT_EQ(leaves(0), 0b010u) << "the pull leaves again";
}

TEST_F(GroupOfThree, APullThatIsAnsweredAtOnceKeepsItsPlace) {
  protocol_.set_places({1, std::nullopt});
  offer(0);
  ASSERT_EQ(leaves(0), 0b001u);
  protocol_.on_answer(0, last_.step, 0);
  pull(1);
  ASSERT_EQ(leaves(0), 0b010u);
  protocol_.on_request(0, 1, {ArrivalKind::initialise, 7, 0});
  EXPECT_EQ(leaves(1), 0u);
  protocol_.on_answer(0, last_.step, 0);
  EXPECT_EQ(leaves(1), 0b001u);
}

TEST_F(GroupOfThree, ALaterStepOfTheFirstBucketDoesNotHoldTheSecond) {
  protocol_.set_places({1, std::nullopt});
  push(0, 2, 1);
  for (uint32_t slot = 0; slot < 3; ++slot) push(slot, 1, 0);
  EXPECT_EQ(leaves(0), 0b111u);
}

}  // namespace
}  // namespace gradrail::aggregator
