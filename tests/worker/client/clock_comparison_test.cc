#include "worker/client/session/clock_comparison.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "ps/protocol/control.pb.h"

namespace gradrail::worker {
namespace {

using namespace std::chrono_literals;

int64_t ns(TimePoint at) { return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count(); }

TEST(ClockComparison, NothingIsKnownBeforeTheFirstAnswer) {
  EXPECT_EQ(ClockComparison().best().offset_ns, 0);
  EXPECT_EQ(ClockComparison().best().bound_ns, ps::kMaxTraceTime);
}

/// The marks of a run that ends before the first answer.
TEST(ClockComparison, AnUnknownClockIsValidInAMessageOfMarks) {
  const ClockOffset unknown = ClockComparison().best();
  ps::proto::TaskMarks message = ps::to_proto("worker/1", {{.at_ns = 1}});
  message.set_offset_ns(unknown.offset_ns);
  message.set_bound_ns(unknown.bound_ns);
  const absl::Status taken = ps::marks_from(message).status();
  EXPECT_TRUE(taken.ok()) << taken;
}

TEST(ClockComparison, TheShortestRoundTripBoundsTheError) {
  constexpr int64_t kTrue = -7'000'000'123;
  constexpr uint64_t kSeed = 5;
  Random random(kSeed);
  ClockComparison clocks;
  TimePoint now = TimePoint(std::chrono::hours(1));
  int64_t shortest = INT64_MAX;
  for (int i = 0; i < 50; ++i) {
    const Duration there = std::chrono::microseconds(10 + random.below(5000));
    const Duration back = std::chrono::microseconds(10 + random.below(5000));
    clocks.add(now, ns(now + there) + kTrue, now + there + back);
    shortest = std::min<int64_t>(shortest, Duration(there + back).count());
    now += 500ms;
    const ClockOffset best = clocks.best();
    EXPECT_LE(std::abs(best.offset_ns - kTrue), best.bound_ns);
    EXPECT_EQ(best.bound_ns, (shortest + 1) / 2);
  }
}

TEST(ClockComparison, OnOneHostItIsNone) {
  ClockComparison clocks;
  const TimePoint now = Clock::now();
  clocks.add(now, ns(now + 10us), now + 200us);
  EXPECT_EQ(clocks.best().offset_ns, 0);
  EXPECT_EQ(clocks.best().bound_ns, 100'000);
}

TEST(ClockComparison, ForgetsWhatWasLongAgo) {
  ClockComparison clocks;
  TimePoint now = Clock::now();
  clocks.add(now, ns(now) + 1'000'000'000, now + 2us);  // then the clocks have parted
  for (int i = 0; i < 60; ++i) {
    now += 500ms;
    clocks.add(now, ns(now) + 2'000'000'000, now + 1ms);
  }
  EXPECT_NEAR(static_cast<double>(clocks.best().offset_ns), 2e9, 1e6);
}

}  // namespace
}  // namespace gradrail::worker
