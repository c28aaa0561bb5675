#include "ps/shard/task_queue.h"

#include <gmock/gmock.h>

#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace gradrail::ps {
namespace {

using ::testing::ElementsAre;

TEST(TaskQueue, RunsTasksInTheirOrder) {
  TaskQueue queue;
  std::vector<int> ran;
  EXPECT_FALSE(queue.has_work());
  for (int i = 1; i <= 3; ++i) EXPECT_TRUE(queue.push([&ran, i] { ran.push_back(i); }));
  EXPECT_TRUE(queue.has_work());
  EXPECT_TRUE(queue.run());
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
  EXPECT_FALSE(queue.has_work());
}

TEST(TaskQueue, ATaskMayPushTheNextOne) {
  TaskQueue queue;
  std::vector<int> ran;
  EXPECT_TRUE(queue.push([&] {
    ran.push_back(1);
    EXPECT_TRUE(queue.push([&] { ran.push_back(2); }));
  }));
  EXPECT_TRUE(queue.run());
  EXPECT_THAT(ran, ElementsAre(1));
  EXPECT_TRUE(queue.has_work());
  EXPECT_TRUE(queue.run());
  EXPECT_THAT(ran, ElementsAre(1, 2));
}

TEST(TaskQueue, AfterStopTheQueueIsEmptiedAndRefusesTasks) {
  TaskQueue queue;
  bool ran = false;
  EXPECT_TRUE(queue.push([&] { ran = true; }));
  queue.stop();
  EXPECT_FALSE(queue.push([] { FAIL() << "a task after stop()"; }));
  EXPECT_TRUE(queue.has_work());
  EXPECT_FALSE(queue.run());
  EXPECT_TRUE(ran);
}

TEST(TaskQueue, NoTaskOfAnotherThreadIsLost) {
  constexpr int kTasks = 10'000;
  TaskQueue queue;
  int ran = 0;  // owner thread only
  std::thread other([&] {
    for (int i = 0; i < kTasks; ++i) EXPECT_TRUE(queue.push([&ran] { ++ran; }));
    queue.stop();
  });
  bool is_stopped = false;
  while (!is_stopped) {
    if (queue.has_work()) is_stopped = !queue.run();
  }
  other.join();
  EXPECT_EQ(ran, kTasks);
}

/// The exception ended the process.
TEST(TaskQueue, ATaskWithoutMemoryIsAnErrorOfItsCaller) {
  TaskQueue queue;
  bool ran_next = false;
  const auto run = [&](auto task) {
    return queue.run_and_wait(
        "shard 0", std::chrono::seconds(10), [&] { EXPECT_TRUE(queue.run()); }, task);
  };
  const absl::StatusOr<int> failed = run([]() -> int { throw std::bad_alloc(); });
  EXPECT_TRUE(absl::IsResourceExhausted(failed.status())) << failed.status();
  EXPECT_THAT(std::string(failed.status().message()), ::testing::HasSubstr("shard 0: out of memory"));
  EXPECT_TRUE(run([&] { return ran_next = true; }).ok());
  EXPECT_TRUE(ran_next);
}

}  // namespace
}  // namespace gradrail::ps
