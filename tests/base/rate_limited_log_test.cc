#include "base/rate_limited_log.h"

#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/base/captured_log.h"

namespace gradrail {
namespace {

using testing::HasSubstr;

class RateLimited : public testing::Test {
 protected:
  std::string text() const { return log_.text(); }

 private:
  const CapturedLog log_{LogLevel::info};
};

TEST_F(RateLimited, OneLineOfAnIntervalAndTheNumberOfTheOthers) {
  {
    RateLimitedLog log(std::chrono::hours(1));
    for (int i = 0; i < 300'000; ++i) log.write(std::to_string(i));
    EXPECT_EQ(text(), "0\n");
  }
  EXPECT_EQ(text(), "0\n299999 (299999 similar messages suppressed)\n");
}

TEST_F(RateLimited, TheNextIntervalBeginsWithTheNumber) {
  RateLimitedLog log(std::chrono::milliseconds(1), 2);
  for (int i = 0; i < 3; ++i) log.write("first");
  const TimePoint end = Clock::now() + std::chrono::milliseconds(2);
  while (Clock::now() < end) std::this_thread::yield();
  log.write("second");
  EXPECT_THAT(text(), HasSubstr("second"));
}

TEST_F(RateLimited, LinesOfALevelThatIsNotLoggedDoNotCount) {
  RateLimitedLog log(std::chrono::hours(1));
  log.write("info", LogLevel::debug);
  log.write("warning");
  EXPECT_EQ(text(), "warning\n");
}

TEST_F(RateLimited, ThreadsShareTheLimit) {
  {
    RateLimitedLog log(std::chrono::hours(1), 3);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (int k = 0; k < 100; ++k) log.write("x");
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(text(), "x\nx\nx\n");
  }
  EXPECT_THAT(text(), HasSubstr("(397 similar messages suppressed)"));
}

}  // namespace
}  // namespace gradrail
