#include "bench/driver/patience.h"

#include <gtest/gtest.h>

#include <thread>

namespace gradrail::bench {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);
const TimePoint kStart = TimePoint{} + 1000 * kSecond;

TEST(LinkTime, FollowsTheBytesAndTheRate) {
  // 64 MiB over 1 Mbit/s, and over 80 Mbit/s.
  EXPECT_EQ(link_time(64 << 20) / kSecond, 536);
  EXPECT_EQ(link_time(64 << 20, 10e6) / kSecond, 6);
  EXPECT_GT(link_time(1e300), Duration::zero()) << "no overflow of the clock";
}

TEST(Patience, BeforeTheFirstTurnTheBytesDecide) {
  EXPECT_EQ(Patience({.whole = 63 * kSecond}, kStart).deadline(), kStart + 63 * kSecond);
  EXPECT_EQ(Patience({.whole = 63 * kSecond, .first_turn = 600 * kSecond}, kStart).deadline(), kStart + 600 * kSecond);
}

TEST(Patience, ThenTheSlowestTurnSoFarDecides) {
  Patience patience({.whole = 63 * kSecond, .first_turn = 600 * kSecond, .pause = 20 * kSecond}, kStart);
  patience.turn_ended(kStart + kSecond);
  EXPECT_EQ(patience.deadline(), kStart + 63 * kSecond) << "a fast path: a hang is found early";
  patience.turn_ended(kStart + 41 * kSecond);
  EXPECT_EQ(patience.deadline(), kStart + (41 + 20 + 8 * 40) * kSecond);
  patience.turn_ended(kStart + 50 * kSecond);
  EXPECT_EQ(patience.deadline(), kStart + (50 + 20 + 8 * 40) * kSecond) << "a fast turn shortens no limit";
}

}  // namespace
}  // namespace gradrail::bench
