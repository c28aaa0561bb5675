#include "bench/driver/patience.h"

#include <gtest/gtest.h>

#include <thread>

namespace gradrail::bench {
namespace {

constexpr Duration kOne = std::chrono::seconds(1);
const TimePoint kBegin = TimePoint{} + 1000 * kOne;

TEST(LinkTime, FollowsTheBytesAndTheRate) {
  // 64 MiB over 1 Mbit/s, and over 80 Mbit/s.
  EXPECT_EQ(link_time(64 << 20) / kOne, 536);
  EXPECT_EQ(link_time(64 << 20, 10e6) / kOne, 6);
  EXPECT_GT(link_time(1e300), Duration::zero()) << "no overflow of the clock";
}

TEST(Patience, BeforeTheFirstTurnTheBytesDecide) {
  EXPECT_EQ(Patience({.whole = 63 * kOne}, kBegin).deadline(), kBegin + 63 * kOne);
  EXPECT_EQ(Patience({.whole = 63 * kOne, .first_turn = 600 * kOne}, kBegin).deadline(), kBegin + 600 * kOne);
}

TEST(Patience, ThenTheSlowestTurnSoFarDecides) {
  Patience patience({.whole = 63 * kOne, .first_turn = 600 * kOne, .pause = 20 * kOne}, kBegin);
  patience.turn_ended(kBegin + kOne);
  EXPECT_EQ(patience.deadline(), kBegin + 63 * kOne) << "a fast path: a hang is found early";
  patience.turn_ended(kBegin + 41 * kOne);
  EXPECT_EQ(patience.deadline(), kBegin + (41 + 20 + 8 * 40) * kOne);
  patience.turn_ended(kBegin + 50 * kOne);
  EXPECT_EQ(patience.deadline(), kBegin + (50 + 20 + 8 * 40) * kOne) << "a fast turn shortens no limit";
}

}  // namespace
}  // namespace gradrail::bench
