#include "base/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradrail {
namespace {

std::vector<uint64_t> steps(const FlightRecorder& recorder) {
  std::vector<uint64_t> list;
  for (const Mark& mark : recorder.marks()) list.push_back(mark.step);
  return list;
}

TEST(FlightRecorder, KeepsTheLastOldestFirst) {
  FlightRecorder recorder(3);
  recorder.record({.step = 1});
  EXPECT_THAT(steps(recorder), ::testing::ElementsAre(1));
  for (uint64_t step = 2; step <= 7; ++step) recorder.record({.step = step});
  EXPECT_THAT(steps(recorder), ::testing::ElementsAre(5, 6, 7));
  const std::vector<Mark> marks = recorder.marks();
  EXPECT_GT(marks[0].at_ns, 0);
  EXPECT_LE(marks[0].at_ns, marks[2].at_ns);
}

TEST(FlightRecorder, WithoutRoomItIsOff) {
  FlightRecorder recorder;
  EXPECT_FALSE(recorder.is_on());
  recorder.record({.step = 1});
  EXPECT_TRUE(recorder.marks().empty());
}

}  // namespace
}  // namespace gradrail
