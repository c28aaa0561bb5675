#include "launch/supervise/task_process.h"

#include <csignal>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradrail::launch {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(KillOfATask, TheKernelsCounterTellsWhetherMemoryWasShort) {
  EXPECT_THAT(describe_kill(SIGKILL, 3, 4), HasSubstr("out-of-memory killer of the kernel was at work"));
  EXPECT_THAT(describe_kill(SIGKILL, 3, 3),
              EndsWith("signal 9 (Killed); the kernel has counted no end for lack of memory"));
  EXPECT_THAT(describe_kill(SIGKILL, std::nullopt, std::nullopt), HasSubstr("usual cause: too little memory"));
}

TEST(KillOfATask, AnotherSignalIsItsOwnCause) {
  EXPECT_EQ(describe_kill(SIGXFSZ, 3, 4), "was killed by signal 25 (File size limit exceeded)");
}

TEST(KillOfATask, TheCounterIsThatOfTheKernel) {
  const auto files = [](const std::string& path) {
    return path == "/proc/vmstat" ? "nr_free_pages 5\noom_kill 12\nswap_ra 0\n" : "";
  };
  EXPECT_EQ(out_of_memory_kills(files), 12u);
  EXPECT_EQ(out_of_memory_kills([](const std::string&) { return ""; }), std::nullopt);
}

TEST(TasksOfARun, AWorkerThatIsStartedAgainCounts) {
  TaskProcess worker = {.is_worker = true, .running = false};
  EXPECT_FALSE(workers_run({worker}));
  worker.is_due_again = true;
  EXPECT_TRUE(workers_run({{.running = true}, worker}));
}

TEST(TasksOfARun, ItsServersHaveEndedWhenNoneRunsAndOneIsComplete) {
  const TaskProcess worker = {.is_worker = true};
  TaskProcess complete = {.running = false};
  TaskProcess lost = {.running = false, .exit_code = kRetry};
  EXPECT_TRUE(servers_have_ended({worker, complete}));
  EXPECT_TRUE(servers_have_ended({worker, lost, complete}));
  EXPECT_FALSE(servers_have_ended({worker, lost}));
  EXPECT_FALSE(servers_have_ended({worker, complete, {.running = true}}));
  lost.is_due_again = true;
  EXPECT_FALSE(servers_have_ended({worker, lost, complete}));
}

}  // namespace
}  // namespace gradrail::launch
