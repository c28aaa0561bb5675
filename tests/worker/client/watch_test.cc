#include <atomic>
#include <thread>

#include "base/status.h"
#include "grpcpp/support/status.h"
#include "ps/admission/grpc_channel.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/control_channel.h"
#include "tests/worker/client/cluster.h"
#include "worker/client/published_stats.h"

namespace gradrail::worker {
namespace {

void exchange_once(Client& client, uint64_t step) {
  fill_gradients(client, 0, step);
  client.exchange();
  ASSERT_TRUE(client.wait().ok());
}

TEST(PublishedStats, RecentFiguresForgetWhatWasBefore) {
  PublishedStats published;
  TimePoint now = Clock::now();
  ClientStats stats;
  const auto pass = [&](int seconds, int64_t latency_ns) {
    for (int quarter = 0; quarter < seconds * 4; ++quarter) {
      stats.exchange.record(latency_ns);
      ++stats.exchange_count;
      published.publish(stats, now += 250ms);
    }
  };
  pass(10, 1'000'000);
  EXPECT_NEAR(published.recent().exchanges_per_s, 4.0, 0.5);
  EXPECT_NEAR(static_cast<double>(published.recent().p99_ns), 1e6, 1e5);
  pass(10, 50'000);
  EXPECT_NEAR(static_cast<double>(published.recent().p99_ns), 5e4, 5e3);
  EXPECT_EQ(published.stats().exchange_count, 80u);
  EXPECT_FALSE(published.is_due(now + 200ms));
  EXPECT_TRUE(published.is_due(now + 250ms));
}

TEST(ClientWatch, OthersSeeFiguresWhileItExchanges) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  const std::unique_ptr<Client> client = join(cluster.options(0), odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  std::atomic<bool> done = false;
  std::atomic<uint64_t> seen = 0;
  std::thread watcher([&] {
    while (!done.load()) {
      const ClientStats stats = client->statistics().published();
      EXPECT_GE(stats.exchange_count, seen);
      EXPECT_EQ(stats.exchange.count(), stats.exchange_count);
      uint64_t staleness = 0;
      for (const uint64_t count : stats.staleness) staleness += count;
      EXPECT_EQ(staleness, stats.exchange_count);
      EXPECT_GE(client->statistics().exchange_under_way(), Duration::zero());
      seen = stats.exchange_count;
    }
  });
  // Until a ps has it from a heartbeat.
  uint64_t step = 0;
  const auto reported = [&] {
    exchange_once(*client, ++step);
    const absl::StatusOr<ps::proto::StatsReply> stats = cluster.server(0).stats();
    return stats.ok() && stats->workers_size() == 1 && stats->workers(0).report().exchanges() > 0 && seen.load() > 0;
  };
  EXPECT_TRUE(eventually(reported));
  done = true;
  watcher.join();
  EXPECT_EQ(client->statistics().exchange_under_way(), Duration::zero());
  EXPECT_TRUE(client->leave().ok());
  EXPECT_EQ(client->statistics().published().exchange_count, step);
  EXPECT_EQ(client->statistics().published().paths_in_use, "shm mapped");
}

TEST(ClientWatch, ADumpIsMadeOnceForEachTimeItIsAskedFor) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  std::atomic<uint32_t> signals = 0;
  std::vector<size_t> dumps;
  ClientOptions options = cluster.options(0);
  options.hooks.marks = 64;
  options.hooks.dump_signals = &signals;
  options.hooks.dump = [&](const std::vector<Mark>& marks) { dumps.push_back(marks.size()); };
  const std::unique_ptr<Client> client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  exchange_once(*client, 1);
  EXPECT_TRUE(dumps.empty());
  signals = 1;
  exchange_once(*client, 2);
  exchange_once(*client, 3);
  EXPECT_EQ(dumps.size(), 1u);
  signals = 3;
  exchange_once(*client, 4);
  ASSERT_EQ(dumps.size(), 2u);
  EXPECT_GT(dumps[1], dumps[0]);
}

TEST(ClientWatch, TheChiefGathersTheMarksOfAll) {
  const Watchdog watchdog;
  Cluster cluster({.ps_count = 2, .worker_count = 2});
  const auto joined = [&](uint32_t task) {
    ClientOptions options = cluster.options(task);
    options.hooks.marks = 256;
    std::unique_ptr<Client> client = join(options, odd_schema());
    if (task == 0) fill_initial(*client);
    EXPECT_TRUE(client->start().ok());
    exchange_once(*client, 1);
    return client;
  };
  const std::unique_ptr<Client> chief = joined(0), other = joined(1);
  const absl::Status uploaded = other->traces().upload();
  ASSERT_TRUE(uploaded.ok()) << uploaded;
  const absl::StatusOr<std::vector<TaskTrace>> traces = chief->traces().gather();
  ASSERT_TRUE(traces.ok()) << traces.status();
  std::vector<std::string> tasks;
  for (const TaskTrace& trace : *traces) {
    tasks.push_back(trace.task);
    EXPECT_EQ(trace.marks.empty(), trace.task.starts_with("ps/")) << trace.task;
  }
  // Servers of this test keep no marks.
  EXPECT_THAT(tasks, ::testing::ElementsAre("ps/0", "worker/1", ::testing::StartsWith("ps/"), "worker/0"));
}

/// Alters the count in the replies of a ps to requests for marks.
class AlteredCount final : public ps::ControlChannel, public ps::ControlDialer {
 public:
  AlteredCount(std::shared_ptr<ps::ControlDialer> dialer, uint32_t count) : dialer_(std::move(dialer)), count_(count) {}

  absl::StatusOr<std::unique_ptr<ps::ControlChannel>> open(const std::string& address, Duration timeout) override {
    auto made = std::make_unique<AlteredCount>(dialer_, count_);
    GRADRAIL_ASSIGN_OR_RETURN(made->channel_, dialer_->open(address, timeout));
    return made;
  }
  grpc::Status call(ps::ControlCall call, Duration timeout, const google::protobuf::Message& request,
                    google::protobuf::Message& reply) override {
    grpc::Status status = channel_->call(call, timeout, request, reply);
    if (call == ps::ControlCall::trace) static_cast<ps::proto::TraceReply&>(reply).set_count(count_);
    return status;
  }
  std::unique_ptr<ps::HeartbeatStream> heartbeat(const ps::proto::Member& member) override {
    return channel_->heartbeat(member);
  }

 private:
  const std::shared_ptr<ps::ControlDialer> dialer_;
  const uint32_t count_;
  std::unique_ptr<ps::ControlChannel> channel_;
};

TEST(ClientWatch, AnImpossibleNumberOfTracesIsRefusedWithTheServer) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  ClientOptions options = cluster.options(0);
  options.hooks.marks = 64;
  const std::unique_ptr<Client> client =
      join(options, odd_schema(), std::make_shared<AlteredCount>(*ps::grpc_dialer({}, {}), 1'000'000));
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  const absl::Status refused = client->traces().gather().status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              ::testing::AllOf(::testing::HasSubstr("parameter server 0"), ::testing::HasSubstr("1000000 tasks")));
}

}  // namespace
}  // namespace gradrail::worker
