#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ps/control/membership.h"
#include "tests/ps/control/membership_fixture.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;

class SilenceTest : public MembershipTest {};

TEST_F(SilenceTest, ALargeRunPingsRarelyAndAllowsTheSamePause) {
  for (WorkerIndex worker = 0; worker < 128; ++worker) join(worker);
  EXPECT_EQ(membership_.plan_ping(0, 100, at(48ms)), 500ms);
  for (WorkerIndex worker = 128; worker < 1000; ++worker) join(worker);
  EXPECT_EQ(membership_.plan_ping(1, 101, at(48ms)), 6s);
  const std::vector<Membership::Silent> silent = membership_.silent_members(at(15500ms));
  EXPECT_EQ(silent.size(), 999u) << "the others have not received another interval";
  EXPECT_EQ(silent[0].limit, 10s);
  const std::vector<Membership::Silent> later = membership_.silent_members(at(15501ms));
  ASSERT_EQ(later.size(), 1000u);
  EXPECT_EQ(later[1].limit, 15500ms) << "the timeout, and the time by which the interval is longer than 0.5 s";
  membership_.leave(1, 101);
  ASSERT_TRUE(membership_.join(1, 5, "host:1", at(16s)).ok());
  const std::vector<Membership::Silent> last = membership_.silent_members(at(26001ms));
  ASSERT_EQ(last.size(), 1000u);
  EXPECT_EQ(last[1].limit, 10s) << "a new incarnation has received no interval yet";
}

TEST_F(SilenceTest, MembersOfALargeRunPingInGroups) {
  for (WorkerIndex worker = 0; worker < 1000; ++worker) join(worker);
  for (const Duration now : {0ms, 1ms, 95ms}) EXPECT_EQ(now + membership_.plan_ping(1, 101, at(now)), 6048ms);
  for (const Duration now : {96ms, 191ms}) EXPECT_EQ(now + membership_.plan_ping(1, 101, at(now)), 6144ms);
}

TEST_F(SilenceTest, SilenceCountsFromTheLastMessage) {
  join(0);
  join(1);
  ASSERT_TRUE(membership_.heard(1, 101, at(5s)).ok());
  EXPECT_THAT(membership_.silent_members(at(10s)), IsEmpty());
  const std::vector<Membership::Silent> silent = membership_.silent_members(at(10s + 1ms));
  ASSERT_EQ(silent.size(), 1u);
  EXPECT_EQ(silent[0].member.worker, 0u);
  EXPECT_EQ(silent[0].member.incarnation, 100u);
  EXPECT_EQ(membership_.silent_members(at(16s)).size(), 2u);
  membership_.leave(0, 100);
  membership_.mark_lost(1, 101, "silent", at(1s));
  EXPECT_THAT(membership_.silent_members(at(60s)), IsEmpty());
}

}  // namespace
}  // namespace gradrail::ps
