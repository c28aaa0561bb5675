#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

#include "transport/rails/bundle_context.h"
#include "transport/rails/lane_choice.h"
#include "transport/rails/link_speed.h"
#include "transport/rails/rails_setting.h"

namespace gradrail::transport::rails {
namespace {

constexpr uint64_t kMega = 1 << 20;

LaneChoice lanes_of(const std::vector<double>& speeds) {
  LaneChoice choice;
  for (const double speed : speeds) choice.add(speed);
  return choice;
}

/// The groups of each lane when every lane drains at its speed and all groups wait at the start.
std::vector<int> distribute(const std::vector<double>& speeds, const std::vector<double>& rates, int groups) {
  LaneChoice choice = lanes_of(speeds);
  std::vector<int> taken(speeds.size());
  std::vector<double> left(speeds.size());
  std::vector<std::vector<uint64_t>> queues(speeds.size());
  int waiting = groups;
  while (waiting > 0) {
    while (waiting > 0) {
      const std::optional<size_t> lane = choice.choose(kMega, kMega * waiting);
      if (!lane) break;
      choice.begin(*lane, kMega);
      queues[*lane].push_back(kMega);
      ++taken[*lane];
      --waiting;
    }
    for (size_t i = 0; i < speeds.size(); ++i) {
      left[i] += rates[i] * kMega / 10;
      while (!queues[i].empty() && left[i] >= kMega) {
        left[i] -= kMega;
        choice.end(i, kMega);
        queues[i].pop_back();
      }
      if (queues[i].empty()) left[i] = 0;
    }
  }
  return taken;
}

TEST(LaneChoice, EqualLanesTakeEqualShares) {
  const std::vector<int> taken = distribute({1, 1, 1, 1}, {1, 1, 1, 1}, 400);
  for (const int each : taken) EXPECT_NEAR(each, 100, 2);
}

TEST(LaneChoice, ASlowLaneTakesLessByItself) {
  // The speed of the second lane is not stated.
  const std::vector<int> taken = distribute({1, 1}, {3, 1}, 400);
  EXPECT_NEAR(taken[0], 300, 8);
}

TEST(LaneChoice, KnownSpeedsDecideTheFirstGroups) {
  LaneChoice choice = lanes_of({100, 25});
  EXPECT_EQ(choice.choose(kMega, kMega), 0u);
  choice.begin(0, kMega);
  EXPECT_EQ(choice.choose(kMega, kMega), 0u) << "two groups on the fast lane end before one on the slow lane";
}

TEST(LaneChoice, AFullFastLaneIsWorthTheWait) {
  LaneChoice choice = lanes_of({100, 1});
  choice.begin(0, 2 * kMega);
  EXPECT_EQ(choice.choose(kMega, kMega), std::nullopt);
  EXPECT_EQ(choice.choose(kMega, 1000 * kMega), 1u) << "with so much to do the slow lane helps";
}

TEST(LaneChoice, AGroupAboveTheWindowGetsAnIdleLane) {
  LaneChoice choice = lanes_of({1});
  EXPECT_EQ(choice.choose(100 * kMega, 100 * kMega), 0u);
  choice.begin(0, 100 * kMega);
  EXPECT_EQ(choice.choose(1, 1), std::nullopt);
  choice.end(0, 100 * kMega);
  EXPECT_EQ(choice.under_way(0), 0u);
}

TEST(RailsSetting, Texts) {
  EXPECT_TRUE(parse_rails("off")->off);
  EXPECT_TRUE(parse_rails("auto")->hosts.empty());
  EXPECT_EQ(parse_rails("10.0.0.1,fd00::1")->hosts, (std::vector<std::string>{"10.0.0.1", "fd00::1"}));
  for (const char* all : {"0.0.0.0", "::", "10.0.0.1,0:0:0:0:0:0:0:0"})
    EXPECT_NE(parse_rails(all).status().message().find("stands for all interfaces"), std::string::npos) << all;
  for (const char* bad : {"", ",", "10.0.0.1,", "host", "10.0.0.1,10.0.0.1", "10.0.0.1:80"})
    EXPECT_FALSE(parse_rails(bad).ok()) << bad;
  EXPECT_EQ(parse_streams("auto").value(), 0u);
  EXPECT_EQ(parse_streams("64").value(), 64u);
  for (const char* bad : {"", "0", "65", "-1", "two"}) EXPECT_FALSE(parse_streams(bad).ok()) << bad;
}

TEST(RailsSetting, RailsTimesStreamsHaveALimit) {
  for (const char* rails : {"auto", "off", "10.0.0.1"}) EXPECT_TRUE(check_lanes(rails, "64").ok()) << rails;
  for (const char* streams : {"auto", "1", "32"}) EXPECT_TRUE(check_lanes("10.0.0.1,10.1.0.1", streams).ok());
  EXPECT_EQ(check_lanes("10.0.0.1,10.1.0.1,10.2.0.1", "22"),
            absl::InvalidArgumentError("--rails 10.0.0.1,10.1.0.1,10.2.0.1 --streams 22: 3 rails of 22 streams are 66 "
                                       "lanes, and 64 is the limit; give --streams 21 or less"));
}

TEST(RailsSetting, AutoTakesLinksOfSimilarSpeed) {
  const std::vector<PhysicalLink> links = {{"eth0", "10.0.0.1", 100'000},
                                           {"eth0", "10.0.0.9", 100'000},
                                           {"eth1", "10.1.0.1", 100'000},
                                           {"eth2", "10.2.0.1", 10'000},
                                           {"eth3", "10.3.0.1", 0}};
  EXPECT_EQ(choose_rails("10.0.0.1", links), (std::vector<std::string>{"10.0.0.1", "10.1.0.1"}));
  EXPECT_TRUE(choose_rails("10.2.0.1", links).empty()) << "its address was chosen, and others are of another network";
  EXPECT_TRUE(choose_rails("10.3.0.1", links).empty());
  EXPECT_TRUE(choose_rails("192.0.2.1", links).empty());
  const std::vector<std::string> lines = explain_rails(links);
  ASSERT_EQ(lines.size(), links.size());
  EXPECT_EQ(lines[0], "a ps at 10.0.0.1 (eth0, 100000 Mb/s): 10.0.0.1, 10.1.0.1");
  EXPECT_EQ(lines[3], "a ps at 10.2.0.1 (eth2, 10000 Mb/s): one rail: no other link has a similar speed");
  EXPECT_EQ(lines[4], "a ps at 10.3.0.1 (eth3, unknown speed): one rail: eth3 reports no speed");
}

TEST(RailsSetting, BindAndLoopbackMeanOneAddress) {
  EXPECT_TRUE(rails_of({}, "10.0.0.1", true).empty());
  EXPECT_TRUE(rails_of({}, "127.0.0.1", false).empty());
  EXPECT_TRUE(rails_of({.off = true, .hosts = {"10.0.0.1"}}, "10.0.0.1", false).empty());
  EXPECT_EQ(rails_of({.hosts = {"10.1.0.1"}}, "10.0.0.1", true), std::vector<std::string>{"10.1.0.1"});
}

TEST(Streams, MoreOnFastLinks) {
  EXPECT_EQ(auto_streams(0), 1u);
  EXPECT_EQ(auto_streams(25'000), 1u);
  EXPECT_EQ(auto_streams(40'000), 1u);
  EXPECT_EQ(auto_streams(100'000), 3u);
  EXPECT_EQ(auto_streams(800'000), 8u);
  EXPECT_EQ(link_towards("127.0.0.1:80").interface, "lo");
  EXPECT_EQ(link_towards("[::1]:80#key").local_host, "::1");
  EXPECT_EQ(link_towards("no-address:80").local_host, "");
}

TEST(Streams, OneLaneNeedsNoBundle) {
  EXPECT_EQ(address_of_lanes("lanes:127.0.0.1:5", true, 1), "");
  EXPECT_EQ(address_of_lanes("lanes:127.0.0.1:5", true, 0), "") << "lo has no speed";
  EXPECT_EQ(address_of_lanes("lanes:127.0.0.1:5", true, 2), "lanes:127.0.0.1:5");
  EXPECT_EQ(address_of_lanes("lanes:127.0.0.1:5,127.0.0.2:5", false, 1), "");
  EXPECT_EQ(address_of_lanes("lanes:127.0.0.1:5,127.0.0.2:5", true, 1), "lanes:127.0.0.1:5,127.0.0.2:5");
  EXPECT_EQ(address_of_lanes("", true, 4), "");
}

}  // namespace
}  // namespace gradrail::transport::rails
