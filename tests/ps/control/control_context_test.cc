#include "ps/control/control_context.h"

#include <gtest/gtest.h>

#include <thread>

namespace gradrail::ps {
namespace {

using namespace std::chrono_literals;

constexpr auto kNever = 1h;  // longer than the time limit of a test run allows

TEST(LossQueue, ReturnsLossesInTheirOrderAndOnce) {
  LossQueue queue;
  queue.report({{.worker = 1, .incarnation = 7}, "its cable"});
  queue.report({{.worker = 0, .incarnation = 8}, "its fan"});
  const LossQueue::Content content = queue.wait(kNever);
  ASSERT_EQ(content.losses.size(), 2u);
  EXPECT_EQ(content.losses[0].member.worker, 1u);
  EXPECT_EQ(content.losses[0].cause, "its cable");
  EXPECT_EQ(content.losses[1].member.incarnation, 8u);
  EXPECT_TRUE(queue.wait(1ms).losses.empty());
}

TEST(LossQueue, TheFirstFailureCounts) {
  LossQueue queue;
  queue.report_failure("shard 0: its GPU");
  queue.report_failure("shard 1: its GPU");
  EXPECT_EQ(queue.wait(kNever).failure, "shard 0: its GPU");
  EXPECT_EQ(queue.wait(1ms).failure, "");
}

TEST(LossQueue, AReportFromAnotherThreadEndsTheWait) {
  LossQueue queue;
  // The wait begins before one of these reports at the latest.
  for (uint64_t i = 1; i <= 100; ++i) {
    std::thread shard([&] { queue.report({{.worker = 2, .incarnation = i}, "silence"}); });
    const LossQueue::Content content = queue.wait(kNever);
    shard.join();
    ASSERT_EQ(content.losses.size(), 1u);
    EXPECT_EQ(content.losses[0].member.incarnation, i);
  }
}

TEST(ControlState, RecordsMessagesUnderItsLock) {
  ControlState state({.worker_names = {"host:0"}});
  EXPECT_TRUE(absl::IsUnavailable(state.heard({.worker = 0, .incarnation = 5}))) << "it has not joined";
  {
    MutexLock lock(state.mutex);
    ASSERT_TRUE(state.membership.join(0, 5, "host:0", Clock::now()).ok());
    state.membership.abort_run("its reason");
  }
  EXPECT_TRUE(state.heard({.worker = 0, .incarnation = 5}).ok());
  EXPECT_EQ(state.aborted(), "its reason");
}

}  // namespace
}  // namespace gradrail::ps
