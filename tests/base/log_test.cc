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
    for (int i = 0; i < 1000; ++i) log_warning("line {}", i);
  });
  for (int i = 0; i < 100; ++i) start_log("worker/" + std::to_string(i % 7));
  other.join();
  log_warning("the last line");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("worker/1 W "), std::string::npos) << log.substr(0, 200);
  EXPECT_NE(log.find("the last line"), std::string::npos);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1001);
}

TEST(Log, ARecordIsOneLine) {
  testing::internal::CaptureStderr();
  start_log("ps/0");
  log_warning("{}", "a name\nworker/1 E 12:00:00.000 forged\x1b[2J");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("a name\\x0aworker/1 E 12:00:00.000 forged\\x1b[2J\n"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

/// This one is the last: it replaces the logger of this process.
TEST(Log, AReceiverGetsOneLine) {
  std::string received;
  send_log_to([&](int /*level*/, const std::string& text) { received = text; }, 0);
  log_warning("one\r\ntwo\x7f");
  EXPECT_EQ(received, "one\\x0d\\x0atwo\\x7f");
  send_log_to(nullptr, 0);
}

}  // namespace
}  // namespace gradrail
