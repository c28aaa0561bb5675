#include "launch/rendezvous/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "fmt/format.h"

namespace gradrail::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Joined = absl::StatusOr<std::unique_ptr<Rendezvous>>;

/// Tasks of one job as threads.
class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousRequest task(uint32_t rank) const {
    return {.launch = {.rank = rank, .size = 3, .rendezvous = meet_, .job = "job"},
            .ps_count = 2,
            .bind_host = "",
            .timeout = timeout_,
            .say = [](const std::string&) {}};
  }
  std::future<Joined> join_async(const RendezvousRequest& request) const {
    return std::async(std::launch::async, [request] { return Rendezvous::join(request); });
  }

  // Tests run side by side, below the ports of outgoing connections.
  const std::string meet_ = fmt::format("127.0.0.1:{}", 12000 + getpid() % 19000);
  Duration timeout_ = std::chrono::seconds(30);
};

std::string text(const absl::Status& status) { return std::string(status.message()); }

TEST_F(RendezvousTest, WorkersLearnWherePsListen) {
  std::future<Joined> first = join_async(task(0)), second = join_async(task(1)), third = join_async(task(2));
  const Joined ps0 = first.get(), ps1 = second.get(), worker = third.get();
  ASSERT_TRUE(ps0.ok() && ps1.ok() && worker.ok());
  EXPECT_THAT((*worker)->assignment().worker_hosts(), ElementsAre("127.0.0.1"));
  EXPECT_TRUE((*ps1)->publish(4001).ok());
  EXPECT_TRUE((*ps0)->publish(4000).ok());
  EXPECT_THAT(*(*worker)->ps_addresses(), ElementsAre("127.0.0.1:4000", "127.0.0.1:4001"));
}

/// Without the ports of their backups the primaries cannot start, and the backups wait for no task.
TEST_F(RendezvousTest, PrimariesReceiveTheAddressesOfTheirBackupsFirst) {
  const auto member = [&](uint32_t rank) {
    RendezvousRequest request = task(rank);
    request.launch.size = 5;
    request.ps_count = 4;
    request.backup_ps = true;
    return join_async(request);
  };
  std::vector<std::future<Joined>> joining;
  for (uint32_t rank = 0; rank < 5; ++rank) joining.push_back(member(rank));
  std::vector<std::unique_ptr<Rendezvous>> tasks;
  for (std::future<Joined>& each : joining) {
    Joined joined = each.get();
    ASSERT_TRUE(joined.ok()) << joined.status();
    tasks.push_back(*std::move(joined));
  }
  EXPECT_TRUE(tasks[2]->publish(4002).ok());
  EXPECT_TRUE(tasks[3]->publish(4003).ok());
  const auto backups = ElementsAre("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:4002", "127.0.0.1:4003");
  EXPECT_THAT(*tasks[0]->ps_addresses(), backups);
  EXPECT_THAT(*tasks[1]->ps_addresses(), backups);
  EXPECT_TRUE(tasks[1]->publish(4001).ok());
  EXPECT_TRUE(tasks[0]->publish(4000).ok());
  EXPECT_THAT(*tasks[4]->ps_addresses(),
              ElementsAre("127.0.0.1:4000", "127.0.0.1:4001", "127.0.0.1:4002", "127.0.0.1:4003"));
}

TEST_F(RendezvousTest, ATaskOfAnotherJobIsRefused) {
  std::future<Joined> first = join_async(task(0));
  RendezvousRequest other = task(1);
  other.launch.job = "other job";
  EXPECT_THAT(text(join_async(other).get().status()), HasSubstr("this rendezvous belongs to job"));
  std::future<Joined> second = join_async(task(1)), third = join_async(task(2));
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_TRUE(third.get().ok());
}

TEST_F(RendezvousTest, APsThatIsLostBeforeItListensEndsTheWait) {
  std::future<Joined> first = join_async(task(0)), second = join_async(task(1)), third = join_async(task(2));
  Joined ps0 = first.get(), worker = third.get();
  ASSERT_TRUE(second.get().ok());  // and is gone
  ASSERT_TRUE(ps0.ok() && worker.ok());
  const absl::Status published = (*ps0)->publish(4000);
  EXPECT_EQ(published.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text(published), HasSubstr("no port of ps/1: ps/1 has ended"));
  ps0->reset();
  EXPECT_EQ((*worker)->ps_addresses().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RendezvousTest, TheWaitHasAnEnd) {
  timeout_ = std::chrono::milliseconds(300);
  const absl::Status host = join_async(task(0)).get().status();
  EXPECT_EQ(host.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(text(host), HasSubstr("ps/1, worker/0 of job at"));
  EXPECT_EQ(join_async(task(1)).get().status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace gradrail::launch
