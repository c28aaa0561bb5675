// Runs the C program against servers in this process.
#include "ps/checkpoint/checkpoint.h"
#include "tests/worker/client/c_program.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

std::string joined(const std::vector<std::string>& hosts) {
  std::string list;
  for (const std::string& host : hosts) list += (list.empty() ? "" : ",") + host;
  return list;
}

void expect_good(const char* failure) { EXPECT_EQ(failure, nullptr) << failure; }

TEST(ClientFromC, Trains) {
  const Watchdog watchdog;
  Cluster cluster({.ps_count = 2, .worker_count = 2});
  in_parallel(2, [&](uint32_t task) {
    expect_good(c_program_trains(joined(cluster.spec().ps).c_str(), joined(cluster.spec().workers).c_str(), task));
  });
  EXPECT_TRUE(cluster.outcome(0).ok());
}

TEST(ClientFromC, GetsTheReasonOfARefusal) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2});
  expect_good(c_program_is_refused(joined(cluster.spec().ps).c_str(), joined(cluster.spec().workers).c_str()));
}

TEST(ClientFromC, EndsAtAnInterruption) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2});
  expect_good(c_program_is_interrupted(joined(cluster.spec().ps).c_str(), joined(cluster.spec().workers).c_str()));
}

TEST(ClientFromC, AProgramOfAnOlderHeaderJoins) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  expect_good(c_program_has_a_short_struct(joined(cluster.spec().ps).c_str(), joined(cluster.spec().workers).c_str()));
}

TEST(ClientFromC, MistakesAreErrorsAndNoCrashes) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2});
  expect_good(c_program_makes_mistakes(joined(cluster.spec().ps).c_str(), joined(cluster.spec().workers).c_str()));
}

TEST(ClientFromC, SavesACheckpoint) {
  const Watchdog watchdog;
  const TemporaryFolder folder;
  Cluster cluster({.ps_count = 2, .worker_count = 1, .checkpoint_dir = folder.path()});
  expect_good(c_program_saves(joined(cluster.spec().ps).c_str(), joined(cluster.spec().workers).c_str()));
  EXPECT_EQ(ps::newest_checkpoint(folder.path()).value_or(0), 1u);
}

}  // namespace
}  // namespace gradrail::worker
