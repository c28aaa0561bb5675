#include "tools/launch/assignment_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Role = ps::Launch::Role;

RankHello ranked(uint32_t rank, const std::string& host, const std::string& address, const std::string& cpus = "0-3") {
  return {.version = "1",
          .job = "job",
          .role = Role::by_rank,
          .rank = rank,
          .size = 4,
          .ps_count = 1,
          .host_id = host,
          .address = address,
          .cpus = cpus};
}

RankHello with_role(Role role, std::optional<uint32_t> index) {
  RankHello hello = ranked(0, "a", "127.0.0.1");
  hello.role = role;
  hello.rank = index;
  return hello;
}

TEST(AssignmentTable, TheFirstRanksServe) {
  AssignmentTable assignments(4, 2);
  EXPECT_THAT(assignments.missing(), ElementsAre("ps/0", "ps/1", "worker/0", "worker/1"));
  const ps::TaskId first = *assignments.take(ranked(1, "a", "10.0.0.1"));
  const ps::TaskId second = *assignments.take(ranked(2, "a", "10.0.0.1"));
  EXPECT_EQ(first.job, "ps");
  EXPECT_EQ(first.index, 1u);
  EXPECT_EQ(second.job, "worker");
  EXPECT_EQ(second.index, 0u);
  EXPECT_THAT(assignments.missing(), ElementsAre("ps/0", "worker/1"));
}

TEST(AssignmentTable, NoIndexIsAssignedTwice) {
  AssignmentTable assignments(4, 1);
  ASSERT_TRUE(assignments.take(ranked(3, "a", "10.0.0.1")).ok());
  EXPECT_EQ(assignments.take(ranked(3, "b", "10.0.0.2")).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(assignments.take(ranked(4, "b", "10.0.0.2")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(assignments.take(ranked(UINT32_MAX, "b", "10.0.0.2")).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(AssignmentTable, ATaskWithoutAnIndexGetsTheFirstFreeOne) {
  AssignmentTable assignments(3, 1);
  EXPECT_EQ(assignments.take(with_role(Role::worker, 0))->index, 0u);
  EXPECT_EQ(assignments.take(with_role(Role::worker, std::nullopt))->index, 1u);
  EXPECT_EQ(assignments.take(with_role(Role::ps, std::nullopt))->job, "ps");
  EXPECT_FALSE(assignments.take(with_role(Role::ps, std::nullopt)).ok());
  EXPECT_THAT(assignments.missing(), IsEmpty());
}

TEST(AssignmentTable, AHostHasOneAddressThatOthersReach) {
  AssignmentTable assignments(4, 1);
  ASSERT_TRUE(assignments.take(ranked(0, "a", "")).ok());
  assignments.set_first_ps_address("127.0.0.1");
  ASSERT_TRUE(assignments.take(ranked(1, "a", "127.0.0.1")).ok());
  assignments.set_first_ps_address("10.0.0.1");
  ASSERT_TRUE(assignments.take(ranked(2, "b", "10.0.0.2")).ok());
  assignments.set_first_ps_address("127.0.0.1");
  ASSERT_TRUE(assignments.take(ranked(3, "a", "127.0.0.1")).ok());
  const RankAssignment assignment = assignments.assignment_of({"worker", 2});
  EXPECT_THAT(assignment.ps_hosts, ElementsAre("10.0.0.1"));
  EXPECT_THAT(assignment.worker_hosts, ElementsAre("10.0.0.1", "10.0.0.2", "10.0.0.1"));
  EXPECT_EQ(assignment.place_on_host, 2u);
  EXPECT_EQ(assignments.assignment_of({"worker", 1}).place_on_host, 0u);
}

TEST(AssignmentTable, NoticesWhereTheLauncherHasBoundTasks) {
  AssignmentTable assignments(4, 1);
  ASSERT_TRUE(assignments.take(ranked(0, "a", "10.0.0.1", "0")).ok());
  ASSERT_TRUE(assignments.take(ranked(1, "a", "10.0.0.1", "1")).ok());
  ASSERT_TRUE(assignments.take(ranked(2, "b", "10.0.0.2", "0")).ok());
  ASSERT_TRUE(assignments.take(ranked(3, "b", "10.0.0.2", "0")).ok());
  EXPECT_TRUE(assignments.assignment_of({"ps", 0}).own_cpus);
  EXPECT_TRUE(assignments.assignment_of({"worker", 0}).own_cpus);
  EXPECT_FALSE(assignments.assignment_of({"worker", 1}).own_cpus);
}

TEST(AssignmentTable, WordsComeThroughAndNonsenseDoesNot) {
  const RankHello hello = ranked(3, "a", "10.0.0.1");
  const nlohmann::json good = to_json(hello);
  EXPECT_EQ(hello_from(good)->rank, 3u);
  EXPECT_EQ(hello_from(to_json(with_role(Role::ps, std::nullopt)))->rank, std::nullopt);
  for (const auto& [name, value] : good.items()) {
    nlohmann::json bad = good;
    bad[name] = nlohmann::json::array();
    EXPECT_FALSE(hello_from(bad).has_value()) << name;
    bad.erase(name);
    EXPECT_EQ(hello_from(bad).has_value(), name == "rank") << name;
  }
  nlohmann::json assignment =
      to_json(RankAssignment{.task = {"worker", 1}, .ps_hosts = {"a"}, .worker_hosts = {"a", "b"}});
  EXPECT_EQ(assignment_from(assignment)->worker_hosts.size(), 2u);
  assignment["index"] = 2;
  EXPECT_FALSE(assignment_from(assignment).has_value());
}

}  // namespace
}  // namespace gradrail::tools
