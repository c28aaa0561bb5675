#include "base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

namespace gradrail {
namespace {

/// The thread sanitizer sees a logger that is replaced under another thread.
TEST(StartLog, AnotherThreadMayLogWhenTheTaskGetsItsName) {
  testing::internal::CaptureStderr();
  start_log("train");
  std::thread other([] {
    for (int i = 0; i < 1000; ++i) spdlog::warn("line {}", i);
  });
  for (int i = 0; i < 100; ++i) start_log("worker/" + std::to_string(i % 7));
  other.join();
  spdlog::warn("the last line");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("worker/1 W "), std::string::npos) << log.substr(0, 200);
  EXPECT_NE(log.find("the last line"), std::string::npos);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1001);
}

}  // namespace
}  // namespace gradrail
