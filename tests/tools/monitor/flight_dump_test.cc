#include "tools/monitor/flight_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace gradrail::tools {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

int64_t ns(TimePoint at) { return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count(); }

TEST(FlightText, IsOldestFirstWithAgesAndPlaces) {
  const TimePoint now = Clock::now();
  const std::string text = flight_text(
      {{.at_ns = ns(now) - 1'000'000, .step = 8, .worker = 2, .shard = 1, .bucket = 3, .kind = Mark::Kind::posted},
       {.at_ns = ns(now) - 2'500'000'000, .step = 7, .worker = 2, .kind = Mark::Kind::begun}},
      "worker/2", "a test", now);
  EXPECT_THAT(text, HasSubstr("worker/2"));
  EXPECT_THAT(text, HasSubstr("the last 2 operations"));
  EXPECT_THAT(text, HasSubstr("dumped because: a test\n"));
  EXPECT_THAT(text, ContainsRegex("\n +-2\\.500000 +2 +7 +- +-  begun: [^\n]*\n +-0\\.001000 +2 +8 +1 +3  posted"));
}

TEST(FlightText, HasAWordForEveryKind) {
  for (int kind = 0; kind <= static_cast<int>(Mark::Kind::applied); ++kind) {
    EXPECT_THAT(flight_text({{.kind = static_cast<Mark::Kind>(kind)}}, "t", "", Clock::now()), Not(HasSubstr("?")));
  }
}

TEST(FlightDump, NeverWritesOverAFileAndNamesWhatFails) {
  const std::string folder = ::testing::TempDir() + "flight_dump_test";
  std::filesystem::remove_all(folder);
  FlightDump dump(folder, "ps/0");
  const absl::StatusOr<std::string> first = dump.write({{.step = 1}}, "one");
  const absl::StatusOr<std::string> second = dump.write({{.step = 2}}, "two");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(*first, *second);
  std::stringstream text;
  text << std::ifstream(*first).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("because: one"));

  FlightDump again(folder, "ps/0");  // the same names
  const absl::StatusOr<std::string> refused = again.write({{.step = 3}}, "three");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(*first));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gradrail::tools
