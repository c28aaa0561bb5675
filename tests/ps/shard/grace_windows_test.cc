// The lengths of grace windows, with a clock of the test.
#include "ps/shard/grace_windows.h"

#include <chrono>

#include "gtest/gtest.h"

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kBegin = TimePoint() + 1h;
constexpr Duration kStepTime = 100ms;

/// The time for which the open window of `bucket` lasts from `now` on. Closes it.
Duration length_from(GraceWindows& windows, uint32_t bucket, TimePoint now) {
  const Duration length = windows.next_end() - now;
  windows.on_applied(bucket, now);
  return length;
}

/// Steps of 100 ms, each with one gradient that comes `lag` after the others.
class AutoWindows {
 public:
  explicit AutoWindows(uint32_t buckets = 1, const Grace& grace = {.is_auto = true}) {
    windows_.reset(grace, std::vector<GraceWindows::Place>(buckets), now_);
  }

  /// Returns the length of the window.
  Duration step(Duration lag, Duration time = kStepTime) {
    ++step_;
    now_ += time;
    windows_.on_arrival(0, 0, step_, now_);
    windows_.begin(0, step_, now_);
    const Duration length = windows_.next_end() - now_;
    EXPECT_EQ(windows_.learned().value_or(length), length);
    const bool is_late = lag > length;
    if (is_late) windows_.on_applied(0, now_ + length);
    windows_.on_arrival(1, 0, step_, now_ + lag);
    if (!is_late) windows_.on_applied(0, now_ + lag);
    now_ += std::min(lag, length);
    return length;
  }

 private:
  GraceWindows windows_;
  TimePoint now_ = kBegin;
  uint64_t step_ = 0;
};

TEST(GraceWindows, AFixedOneHasItsSecondsInEachStep) {
  GraceWindows windows;
  windows.reset({.seconds = 0.25}, {{}, {}}, kBegin);
  EXPECT_FALSE(windows.learned().has_value());
  EXPECT_EQ(windows.next_end(), TimePoint::max());
  windows.begin(1, 1, kBegin + 10ms);
  windows.begin(0, 1, kBegin + 30ms);
  EXPECT_EQ(windows.next_end(), kBegin + 260ms);
  EXPECT_FALSE(windows.take_ended(kBegin + 259ms).has_value());
  const auto ended = windows.take_ended(kBegin + 260ms);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->bucket, 1u);
  EXPECT_EQ(ended->step, 1u);
  EXPECT_EQ(windows.next_end(), kBegin + 280ms);
  windows.on_applied(0, kBegin + 270ms);
  EXPECT_FALSE(windows.take_ended(kBegin + 1h).has_value()) << "the step was applied before";
  windows.begin(0, 2, kBegin + 1h);
  EXPECT_EQ(length_from(windows, 0, kBegin + 1h), 250ms);
}

TEST(GraceWindows, AShardWithoutLagsWaitsAsLongAsTheStepTook) {
  AutoWindows windows;
  EXPECT_EQ(windows.step(20ms), 100ms);
  EXPECT_EQ(windows.step(20ms), 100ms) << "the lag of a step counts when its worker takes part in the next one";
  EXPECT_EQ(windows.step(20ms), 25ms);
  EXPECT_EQ(windows.step(20ms), 25ms);
  AutoWindows without_lags;
  for (const Duration expected : {100ms, 100ms, 0ms, 0ms}) EXPECT_EQ(without_lags.step(0ms), expected);
}

TEST(GraceWindows, AWindowIsNotLongerThanItsStep) {
  AutoWindows windows;
  for (int i = 0; i < 3; ++i) windows.step(90ms);
  EXPECT_EQ(windows.step(90ms), 100ms);
  EXPECT_EQ(windows.step(90ms, 95ms), 95ms);
  EXPECT_EQ(windows.step(90ms, 80ms), 0ms) << "it would end before such a gradient";
}

TEST(GraceWindows, AWindowIsNotLongerThanTenSeconds) {
  AutoWindows windows;
  for (int i = 0; i < 3; ++i) windows.step(9s, 60s);
  EXPECT_EQ(windows.step(9s, 60s), 10s);
  AutoWindows slower;
  for (int i = 0; i < 3; ++i) slower.step(11s, 60s);
  EXPECT_EQ(slower.step(11s, 60s), 0s);
}

TEST(GraceWindows, OneLateGradientInTenMayBeMissed) {
  AutoWindows windows;
  for (int i = 0; i < 70; ++i) windows.step(i % 11 == 0 ? 60ms : 20ms);
  EXPECT_EQ(windows.step(20ms), 25ms);
  for (int i = 0; i < 70; ++i) windows.step(i % 5 == 0 ? 60ms : 20ms);
  EXPECT_EQ(windows.step(20ms), 75ms);
}

TEST(GraceWindows, TheLatestLagsCount) {
  AutoWindows windows;
  for (int i = 0; i < 66; ++i) windows.step(60ms);
  EXPECT_EQ(windows.step(20ms), 75ms);
  for (int i = 0; i < 66; ++i) windows.step(20ms);
  EXPECT_EQ(windows.step(20ms), 25ms);
}

TEST(GraceWindows, AllBucketsOfAStepHaveTheLengthOfTheFirst) {
  GraceWindows windows;
  windows.reset({.is_auto = true}, {{0}, {0}, {1}}, kBegin);
  TimePoint now = kBegin;
  for (uint64_t step = 1; step <= 3; ++step) {
    now += kStepTime;
    for (const uint32_t bucket : {0u, 1u}) {
      windows.begin(bucket, step, now);
      windows.on_applied(bucket, now);
      // The longest lag of the worker's buckets counts.
      windows.on_arrival(1, bucket, step, now + (bucket == 0 ? 8ms : 16ms));
    }
  }
  now += kStepTime;
  windows.begin(0, 4, now);
  EXPECT_EQ(length_from(windows, 0, now), 20ms);
  windows.on_arrival(1, 0, 4, now);
  windows.begin(1, 4, now + 60ms);
  EXPECT_EQ(length_from(windows, 1, now + 60ms), 20ms);
  windows.begin(2, 1, now);
  EXPECT_EQ(length_from(windows, 2, now), 20ms) << "another fragment: the lags of the shard count";
  EXPECT_EQ(windows.learned(), 20ms);
}

TEST(GraceWindows, BucketsBehindAMissedOneAtTheirPlaceHaveNoWindow) {
  GraceWindows windows;
  windows.reset({.seconds = 0.25}, {{.before = 1}, {.before = 2}, {}, {}}, kBegin);
  windows.begin(2, 1, kBegin);
  ASSERT_EQ(windows.take_ended(kBegin + 250ms)->bucket, 2u);
  windows.on_applied(2, kBegin + 250ms);
  for (const uint32_t bucket : {1u, 0u}) {
    windows.begin(bucket, 1, kBegin + 260ms);
    EXPECT_EQ(windows.next_end(), kBegin + 260ms);
    ASSERT_EQ(windows.take_ended(kBegin + 260ms)->bucket, bucket);
    windows.on_applied(bucket, kBegin + 260ms);
  }
  windows.begin(3, 1, kBegin + 260ms);
  EXPECT_EQ(length_from(windows, 3, kBegin + 260ms), 250ms) << "another place";
  windows.begin(2, 2, kBegin + 1s);
  EXPECT_EQ(length_from(windows, 2, kBegin + 1s), 250ms) << "another step";
  windows.begin(1, 2, kBegin + 1s);
  EXPECT_EQ(length_from(windows, 1, kBegin + 1s), 250ms) << "all workers were in time before it";
}

TEST(GraceWindows, AGradientThatIsStepsLateCountsFromTheEarliestKnownStep) {
  GraceWindows windows;
  windows.reset({.is_auto = true}, {{}}, kBegin);
  TimePoint now = kBegin;
  for (uint64_t step = 1; step <= 4; ++step) {
    now += kStepTime;
    windows.begin(0, step, now);
    windows.on_applied(0, now);
  }
  windows.on_arrival(1, 0, 1, now);
  windows.on_arrival(1, 0, 5, now);  // it goes on with the others
  now += 10 * kStepTime;
  windows.begin(0, 5, now);
  EXPECT_EQ(length_from(windows, 0, now), 125ms);
}

}  // namespace
}  // namespace gradrail::ps
