#include "tools/launcher/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "bench/link.h"
#include "fmt/format.h"

namespace gradrail::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Met = absl::StatusOr<std::unique_ptr<Rendezvous>>;

/// Tasks of one job as threads.
class RendezvousTest : public ::testing::Test {
 protected:
  Attendance task(uint32_t rank) const {
    return {.launch = {.rank = rank, .size = 3, .meet = meet_, .job = "job"},
            .ps_count = 2,
            .bind_host = "",
            .patience = patience_,
            .say = [](const std::string&) {}};
  }
  std::future<Met> come(const Attendance& attendance) const {
    return std::async(std::launch::async, [attendance] { return Rendezvous::meet(attendance); });
  }

  // Tests run side by side, below the ports of outgoing connections.
  const std::string meet_ = fmt::format("127.0.0.1:{}", 12000 + getpid() % 19000);
  Duration patience_ = std::chrono::seconds(30);
};

std::string text(const absl::Status& status) { return std::string(status.message()); }

TEST_F(RendezvousTest, WorkersLearnWherePsListen) {
  std::future<Met> first = come(task(0)), second = come(task(1)), third = come(task(2));
  const Met ps0 = first.get(), ps1 = second.get(), worker = third.get();
  ASSERT_TRUE(ps0.ok() && ps1.ok() && worker.ok());
  EXPECT_EQ((*ps1)->seat().task.job, "ps");
  EXPECT_EQ((*worker)->seat().task.index, 0u);
  EXPECT_TRUE((*ps1)->publish(4001).ok());
  EXPECT_TRUE((*ps0)->publish(4000).ok());
  EXPECT_THAT(*(*worker)->ps_addresses(), ElementsAre("127.0.0.1:4000", "127.0.0.1:4001"));
}

TEST_F(RendezvousTest, StrangersAreNotWaitedForAndSpoilNothing) {
  std::future<Met> first = come(task(0));
  const TimePoint deadline = Clock::now() + patience_;
  absl::StatusOr<bench::Link> silent = bench::Link::connect(meet_, deadline);
  absl::StatusOr<bench::Link> odd = bench::Link::connect(meet_, deadline);
  ASSERT_TRUE(silent.ok() && odd.ok());
  ASSERT_TRUE(odd->send({{"gradrail train", 7}}, deadline).ok());
  Attendance other = task(1);
  other.launch.job = "other job";
  EXPECT_THAT(text(come(other).get().status()), HasSubstr("here the tasks of job meet"));
  std::future<Met> second = come(task(1)), third = come(task(2));
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_TRUE(third.get().ok());
}

TEST_F(RendezvousTest, APsThatIsLostBeforeItListensEndsTheWait) {
  std::future<Met> first = come(task(0)), second = come(task(1)), third = come(task(2));
  Met ps0 = first.get(), worker = third.get();
  ASSERT_TRUE(second.get().ok());  // and is gone
  ASSERT_TRUE(ps0.ok() && worker.ok());
  const absl::Status published = (*ps0)->publish(4000);
  EXPECT_EQ(published.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text(published), HasSubstr("ps/1 has ended before it listened"));
  ps0->reset();
  EXPECT_EQ((*worker)->ps_addresses().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RendezvousTest, ASecondOfTheSameRankIsSentAway) {
  std::future<Met> first = come(task(0)), second = come(task(1)), again = come(task(1));
  // One of the two is told at once, the other when all have come.
  const TimePoint deadline = Clock::now() + patience_;
  const auto told = [](const std::future<Met>& each) {
    return each.wait_for(std::chrono::milliseconds(5)) == std::future_status::ready;
  };
  bool second_told = false;
  bool again_told = false;
  while (!second_told && !again_told && Clock::now() < deadline) {
    second_told = told(second);
    again_told = !second_told && told(again);
  }
  ASSERT_TRUE(second_told || again_told);
  EXPECT_THAT(text((second_told ? second : again).get().status()), HasSubstr("there is another rank 1"));
  std::future<Met> third = come(task(2));
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE((second_told ? again : second).get().ok());
  EXPECT_TRUE(third.get().ok());
}

TEST_F(RendezvousTest, TheWaitHasAnEnd) {
  patience_ = std::chrono::milliseconds(300);
  const absl::Status host = come(task(0)).get().status();
  EXPECT_EQ(host.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(host), HasSubstr("ps/1, worker/0 of job"));
  EXPECT_EQ(come(task(1)).get().status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RendezvousTest, ATakenPortIsNamed) {
  const absl::StatusOr<bench::Listener> there = bench::Listener::open(meet_);
  ASSERT_TRUE(there.ok());
  const absl::Status status = come(task(0)).get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(text(status), HasSubstr("--meet"));
}

}  // namespace
}  // namespace gradrail::tools
