#include "tools/launcher/seating.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Role = ps::Launch::Role;

Hello ranked(uint32_t rank, const std::string& host, const std::string& address, const std::string& cpus = "0-3") {
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

Hello with_role(Role role, std::optional<uint32_t> index) {
  Hello hello = ranked(0, "a", "127.0.0.1");
  hello.role = role;
  hello.rank = index;
  return hello;
}

TEST(Seating, TheFirstRanksServe) {
  Seating seating(4, 2);
  EXPECT_THAT(seating.missing(), ElementsAre("ps/0", "ps/1", "worker/0", "worker/1"));
  const ps::TaskId first = *seating.take(ranked(1, "a", "10.0.0.1"));
  const ps::TaskId second = *seating.take(ranked(2, "a", "10.0.0.1"));
  EXPECT_EQ(first.job, "ps");
  EXPECT_EQ(first.index, 1u);
  EXPECT_EQ(second.job, "worker");
  EXPECT_EQ(second.index, 0u);
  EXPECT_THAT(seating.missing(), ElementsAre("ps/0", "worker/1"));
}

TEST(Seating, NobodySitsTwice) {
  Seating seating(4, 1);
  ASSERT_TRUE(seating.take(ranked(3, "a", "10.0.0.1")).ok());
  EXPECT_EQ(seating.take(ranked(3, "b", "10.0.0.2")).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(seating.take(ranked(4, "b", "10.0.0.2")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(seating.take(ranked(UINT32_MAX, "b", "10.0.0.2")).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Seating, WhoHasNoNumberGetsTheFirstThatIsFree) {
  Seating seating(3, 1);
  EXPECT_EQ(seating.take(with_role(Role::worker, 0))->index, 0u);
  EXPECT_EQ(seating.take(with_role(Role::worker, std::nullopt))->index, 1u);
  EXPECT_EQ(seating.take(with_role(Role::ps, std::nullopt))->job, "ps");
  EXPECT_FALSE(seating.take(with_role(Role::ps, std::nullopt)).ok());
  EXPECT_THAT(seating.missing(), IsEmpty());
}

TEST(Seating, AHostHasOneAddressThatOthersReach) {
  Seating seating(4, 1);
  ASSERT_TRUE(seating.take(ranked(0, "a", "")).ok());
  seating.first_ps_reached_at("127.0.0.1");
  ASSERT_TRUE(seating.take(ranked(1, "a", "127.0.0.1")).ok());
  seating.first_ps_reached_at("10.0.0.1");
  ASSERT_TRUE(seating.take(ranked(2, "b", "10.0.0.2")).ok());
  seating.first_ps_reached_at("127.0.0.1");
  ASSERT_TRUE(seating.take(ranked(3, "a", "127.0.0.1")).ok());
  const Seat seat = seating.seat_of({"worker", 2});
  EXPECT_THAT(seat.ps_hosts, ElementsAre("10.0.0.1"));
  EXPECT_THAT(seat.worker_hosts, ElementsAre("10.0.0.1", "10.0.0.2", "10.0.0.1"));
  EXPECT_EQ(seat.place_on_host, 2u);
  EXPECT_EQ(seating.seat_of({"worker", 1}).place_on_host, 0u);
}

TEST(Seating, NoticesWhereTheLauncherHasBoundTasks) {
  Seating seating(4, 1);
  ASSERT_TRUE(seating.take(ranked(0, "a", "10.0.0.1", "0")).ok());
  ASSERT_TRUE(seating.take(ranked(1, "a", "10.0.0.1", "1")).ok());
  ASSERT_TRUE(seating.take(ranked(2, "b", "10.0.0.2", "0")).ok());
  ASSERT_TRUE(seating.take(ranked(3, "b", "10.0.0.2", "0")).ok());
  EXPECT_TRUE(seating.seat_of({"ps", 0}).own_cpus);
  EXPECT_TRUE(seating.seat_of({"worker", 0}).own_cpus);
  EXPECT_FALSE(seating.seat_of({"worker", 1}).own_cpus);
}

TEST(Seating, WordsComeThroughAndNonsenseDoesNot) {
  const Hello hello = ranked(3, "a", "10.0.0.1");
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
  nlohmann::json seat = to_json(Seat{.task = {"worker", 1}, .ps_hosts = {"a"}, .worker_hosts = {"a", "b"}});
  EXPECT_EQ(seat_from(seat)->worker_hosts.size(), 2u);
  seat["index"] = 2;
  EXPECT_FALSE(seat_from(seat).has_value());
}

}  // namespace
}  // namespace gradrail::tools
