#include "launch/rendezvous/assignment_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail::launch {
namespace {

using proto::RankHello;
using ::testing::ElementsAre;

RankHello ranked(uint32_t rank, const std::string& host, const std::string& address, const std::string& cpus = "0-3") {
  RankHello hello;
  hello.set_rank(rank);
  hello.set_host_id(host);
  hello.set_address(address);
  hello.set_cpus(cpus);
  return hello;
}

TEST(AssignmentTable, TheFirstRanksServe) {
  AssignmentTable assignments(4, 2);
  EXPECT_THAT(assignments.missing(), ElementsAre("ps/0", "ps/1", "worker/0", "worker/1"));
  ASSERT_TRUE(assignments.take(ranked(1, "a", "10.0.0.1")).ok());
  ASSERT_TRUE(assignments.take(ranked(2, "a", "10.0.0.1")).ok());
  EXPECT_THAT(assignments.missing(), ElementsAre("ps/0", "worker/1"));
}

TEST(AssignmentTable, NoIndexIsAssignedTwice) {
  AssignmentTable assignments(4, 1);
  ASSERT_TRUE(assignments.take(ranked(3, "a", "10.0.0.1")).ok());
  EXPECT_EQ(assignments.take(ranked(3, "b", "10.0.0.2")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(assignments.take(ranked(4, "b", "10.0.0.2")).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(assignments.take(ranked(UINT32_MAX, "b", "10.0.0.2")).code(), absl::StatusCode::kResourceExhausted);
}

TEST(AssignmentTable, AHostHasOneAddressThatOthersReach) {
  AssignmentTable assignments(4, 1);
  ASSERT_TRUE(assignments.take(ranked(0, "a", "")).ok());
  assignments.set_first_address("127.0.0.1");
  ASSERT_TRUE(assignments.take(ranked(1, "a", "127.0.0.1")).ok());
  assignments.set_first_address("10.0.0.1");
  ASSERT_TRUE(assignments.take(ranked(2, "b", "10.0.0.2")).ok());
  assignments.set_first_address("127.0.0.1");
  ASSERT_TRUE(assignments.take(ranked(3, "a", "127.0.0.1")).ok());
  const proto::RankAssignment assignment = assignments.assignment_of(3);
  EXPECT_THAT(assignment.ps_hosts(), ElementsAre("10.0.0.1"));
  EXPECT_THAT(assignment.worker_hosts(), ElementsAre("10.0.0.1", "10.0.0.2", "10.0.0.1"));
  EXPECT_EQ(assignment.place_on_host(), 2u);
  EXPECT_EQ(assignments.assignment_of(2).place_on_host(), 0u);
}

TEST(AssignmentTable, NoticesWhereTheLauncherHasBoundTasks) {
  AssignmentTable assignments(4, 1);
  ASSERT_TRUE(assignments.take(ranked(0, "a", "10.0.0.1", "0")).ok());
  ASSERT_TRUE(assignments.take(ranked(1, "a", "10.0.0.1", "1")).ok());
  ASSERT_TRUE(assignments.take(ranked(2, "b", "10.0.0.2", "0")).ok());
  ASSERT_TRUE(assignments.take(ranked(3, "b", "10.0.0.2", "0")).ok());
  EXPECT_TRUE(assignments.assignment_of(0).own_cpus());
  EXPECT_TRUE(assignments.assignment_of(1).own_cpus());
  EXPECT_FALSE(assignments.assignment_of(2).own_cpus());
}

}  // namespace
}  // namespace gradrail::launch
