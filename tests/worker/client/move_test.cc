// Data connections fail while the control plane works: the exchange continues over another path, and each gradient
// counts once.
#include <atomic>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "tests/base/captured_log.h"
#include "tests/worker/client/cluster.h"
#include "tests/worker/client/cut.h"
#include "transport/registry.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

class ClientMove : public ::testing::TestWithParam<const char*> {};

TEST_P(ClientMove, ConnectionThatFailsBetweenStepsIsReplaced) {
  const Watchdog watchdog;
  Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {GetParam()}});
  const std::unique_ptr<Client> client = join(cluster.options(0), odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  uint64_t steps = 0;
  const auto one_step = [&] {
    fill_gradients(*client, 0, ++steps);
    client->exchange();
    const absl::Status waited = client->wait();
    EXPECT_TRUE(waited.ok()) << waited;
    return waited.ok();
  };
  for (uint64_t cut = 1; cut <= 3; ++cut) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(one_step());
    cut_one(GetParam(), cluster.spec());
    // Shared memory, which outlives the socket beside it, may carry some steps before the loss is detected.
    ASSERT_TRUE(eventually([&] { return !one_step() || client->statistics().now().moves == 2 * cut; })) << "two shards";
  }
  EXPECT_EQ(client->global_step(), steps);
  EXPECT_EQ(client->statistics().now().moves, 6u);
  const std::vector<float> got = flatten(*client);
  for (size_t i = 0; i < got.size(); ++i) {
    float expected = initial_of(i);
    for (uint64_t step = 1; step <= steps; ++step) expected -= gradient_of(0, step, i);
    ASSERT_EQ(got[i], expected) << i;
  }
}

TEST(ClientMoveOfStreams, TheBytesOfTheLostPathRemain) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1, .transports = {"tcp"}});
  ClientOptions options = cluster.options(0);
  options.transport.streams = 2;
  const std::unique_ptr<Client> client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  const auto one_step = [&] {
    fill_gradients(*client, 0, 1);
    client->exchange();
    const absl::Status waited = client->wait();
    EXPECT_TRUE(waited.ok()) << waited;
    return waited.ok();
  };
  ASSERT_TRUE(one_step());
  cut_one("tcp", cluster.spec());
  ASSERT_TRUE(eventually([&] { return !one_step() || client->statistics().now().moves == 1; }));
  const ClientStats stats = client->statistics().now();
  ASSERT_EQ(stats.rail_bytes.size(), 1u);
  const ClientStats::RailBytes& rail = stats.rail_bytes[0];
  EXPECT_EQ(rail.path, "tcp");
  EXPECT_EQ(rail.address, "127.0.0.1");
  EXPECT_EQ(rail.returned, stats.bytes_returned);
  EXPECT_GE(rail.pushed, stats.bytes_pushed) << "the check of each path is in addition";
}

TEST_P(ClientMove, ConnectionThatFailsWhileWaitingIsReplaced) {
  const Watchdog watchdog;
  const CapturedLog log(LogLevel::info);
  Cluster cluster({.worker_count = 2, .transports = {GetParam()}});
  ClientOptions options[2] = {cluster.options(0, ModeKind::sync), cluster.options(1, ModeKind::sync)};
  const std::unique_ptr<Client> first = join(options[0], odd_schema());
  const std::unique_ptr<Client> second = join(options[1], odd_schema());
  ASSERT_TRUE(first != nullptr && second != nullptr);
  fill_initial(*first);
  ASSERT_TRUE(first->start().ok());
  ASSERT_TRUE(second->start().ok());
  fill_gradients(*first, 0, 1);
  first->exchange();  // waits for the second worker
  std::thread waiter([&] {
    const absl::Status waited = first->wait();
    EXPECT_TRUE(waited.ok()) << waited;
  });
  cut_one(GetParam(), cluster.spec());
  // Otherwise shared memory, which outlives the socket beside it, may carry the answer before the loss is detected.
  EXPECT_TRUE(eventually([&] { return log.text().find("continues over") != std::string::npos; }));
  fill_gradients(*second, 1, 1);
  second->exchange();
  const absl::Status waited = second->wait();
  waiter.join();
  ASSERT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(first->statistics().now().moves, 1u);
  EXPECT_EQ(flatten(*first), flatten(*second));
  const std::vector<float> got = flatten(*first);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], initial_of(i) - (gradient_of(0, 1, i) + gradient_of(1, 1, i)) / 2) << i;
  }
}

/// Cuts at random moments, both workers, two shards: the result is that of the undisturbed run, bit for bit.
TEST_P(ClientMove, SyncRunUnderCutsEqualsTheUndisturbedOne) {
  const Watchdog watchdog;
  const auto run = [&](bool disturbed, PushFormat push, ReturnFormat returns = ReturnFormat::fp32) {
    Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
    std::vector<float> result[2];
    std::atomic<uint64_t> moves = 0;
    std::atomic<uint64_t> started = 0;
    std::atomic<uint64_t> steps = 0;
    std::atomic<bool> done = false;
    // The steps trigger the cuts, not the clock: on a busy machine no step would complete between two cuts. The cuts
    // begin after both workers have joined: sync continues without a worker after a failed join.
    std::thread cutter([&] {
      Random random(7);
      uint64_t next = 0;
      while (disturbed && !done) {
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(2000)));
        if (started < 2 || steps < next) continue;
        cut_data_connections(GetParam(), cluster.spec());
        next = steps + random.below(20);
      }
    });
    in_parallel(2, [&](uint32_t index) {
      ClientOptions options = cluster.options(index);
      options.mode.kind = ModeKind::sync;
      options.bucket_bytes = 1024;
      set_push(options, push);
      options.compression.returns = returns;
      const std::unique_ptr<Client> client = join(options, odd_schema());
      ASSERT_NE(client, nullptr);
      if (index == 0) fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      ++started;
      for (uint64_t step = 1; step <= 150; ++step) {
        fill_gradients(*client, index, step);
        scale_gradients(*client, 0.3f);
        client->exchange();
        const absl::Status waited = client->wait();
        ASSERT_TRUE(waited.ok()) << "worker " << index << " step " << step << ": " << waited;
        ++steps;
      }
      result[index] = flatten(*client);
      moves += client->statistics().now().moves;
      EXPECT_TRUE(client->barriers().wait("done").ok());
    });
    done = true;
    cutter.join();
    EXPECT_EQ(result[0], result[1]);
    EXPECT_EQ(moves > 0, disturbed);
    return result[0];
  };
  // fp32 has no header; topk has places and keeps a rest, as int4 does, whose parameters return as differences.
  for (const PushFormat push : {PushFormat(PushFormat::fp32), PushFormat(PushFormat::topk, 20)})
    EXPECT_EQ(run(true, push), run(false, push)) << push_format_name(push);
  EXPECT_EQ(run(true, PushFormat::int4, ReturnFormat::delta), run(false, PushFormat::int4, ReturnFormat::bf16));
}

INSTANTIATE_TEST_SUITE_P(Over, ClientMove, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST(ClientFailback, MovesToTheNextTransportAndComesBack) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1, .transports = {"shm", "tcp"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"shm", "tcp"};
  options.transport.failback = 50ms;
  const std::unique_ptr<Client> client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  uint64_t step = 0;
  const auto one_step = [&] {
    fill_gradients(*client, 0, ++step);
    client->exchange();
    const absl::Status waited = client->wait();
    EXPECT_TRUE(waited.ok()) << waited;
    return waited.ok();
  };
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(one_step());
    EXPECT_THAT(client->statistics().now().paths[0], HasSubstr(": shm"));
    cut_one("shm", cluster.spec());
    // As above, over the socket beside shared memory.
    ASSERT_TRUE(
        eventually([&] { return !one_step() || client->statistics().now().moves == static_cast<uint64_t>(round); }));
    EXPECT_THAT(client->statistics().now().paths[0], HasSubstr(": tcp (shm refused: lost during the run"));
    ASSERT_TRUE(
        eventually([&] { return !one_step() || client->statistics().now().returns == static_cast<uint64_t>(round); }));
  }
  EXPECT_EQ(client->statistics().now().moves, 3u);
  ASSERT_EQ(client->statistics().now().path_bytes.size(), 2u);
  for (const ClientStats::PathBytes& bytes : client->statistics().now().path_bytes)
    EXPECT_GT(bytes.pushed, 0u) << bytes.path;
  const std::vector<float> got = flatten(*client);
  for (size_t i = 0; i < got.size(); ++i) {
    float expected = initial_of(i);
    for (uint64_t each = 1; each <= step; ++each) expected -= gradient_of(0, each, i);
    ASSERT_EQ(got[i], expected) << i;
  }
}

TEST(ClientFailback, ZeroNeverComesBack) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1, .transports = {"shm", "tcp"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"shm", "tcp"};
  options.transport.failback = Duration::zero();
  const std::unique_ptr<Client> client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->start().ok());
  cut_one("shm", cluster.spec());
  const auto one_step = [&] {
    client->exchange();
    return client->wait().ok();
  };
  ASSERT_TRUE(eventually([&] { return !one_step() || client->statistics().now().moves == 1; }));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(one_step());
  EXPECT_EQ(client->statistics().now().returns, 0u);
  EXPECT_THAT(client->statistics().now().paths[0], HasSubstr(": tcp"));
}

TEST(ClientRequireRdma, RefusesWhatNoDeviceCarries) {
  Cluster cluster({.worker_count = 1, .transports = {"shm", "tcp"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"shm", "tcp"};
  options.transport.require_rdma = true;
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::join(options, odd_schema());
  EXPECT_TRUE(absl::IsFailedPrecondition(client.status())) << client.status();
  EXPECT_THAT(std::string(message_of(client.status())), HasSubstr("tcp is carried by no RDMA device"));
}

TEST(ClientTransports, PluginThatIsNotThereIsAReason) {
  Cluster cluster({.worker_count = 1, .transports = {"ofi", "tcp"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"ofi", "tcp"};
  options.transport.rdma_only = true;
  const std::unique_ptr<Client> client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  EXPECT_THAT(client->statistics().now().paths[0], HasSubstr(": tcp (ofi refused: "));
}

}  // namespace
}  // namespace gradrail::worker
