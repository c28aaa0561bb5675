// The grace window of a quorum.
#include "ps/protocol/control.pb.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

const Schema kGraceSchema = {{"w", {40}}, {"b", {24}}};
constexpr uint32_t kGraceWorkers = 3;
constexpr uint32_t kGraceQuorum = 2;

struct GraceRun {
  GraceRun(const char* transport, const Grace& grace, bool backups = false, uint64_t slot_bytes = 0,
           const Schema& schema = kGraceSchema)
      : cluster({.shards_per_ps = 2,
                 .worker_count = kGraceWorkers,
                 .transports = {transport},
                 .slot_bytes = slot_bytes,
                 .backups = backups}) {
    for (uint32_t worker = 0; worker < kGraceWorkers; ++worker) {
      ClientOptions options = cluster.options(worker, ModeKind::quorum);
      options.mode.bound = kGraceQuorum;
      options.mode.grace = grace;
      options.bucket_bytes = 64;
      clients.push_back(join(options, schema));
      if (clients.back() == nullptr) return;
      if (worker == 0) fill_initial(*clients[0]);
      is_ready = clients.back()->start().ok();
      if (!is_ready) return;
    }
  }

  void step(uint32_t worker, uint64_t number) {
    fill_gradients(*clients[worker], worker, number);
    clients[worker]->exchange();
    EXPECT_TRUE(clients[worker]->wait().ok());
  }
  /// Workers 0 and 1 push a step, in threads.
  std::vector<std::thread> begin_step(uint64_t number) {
    std::vector<std::thread> first;
    for (const uint32_t worker : {0u, 1u}) first.emplace_back([this, worker, number] { step(worker, number); });
    return first;
  }
  /// The parameters are those of `steps` steps with the gradients of all workers.
  void expect_all_gradients(uint64_t steps) {
    const std::vector<float> got = flatten(*clients[1]);
    for (size_t i = 0; i < got.size(); ++i) {
      float expected = initial_of(i);
      for (uint64_t number = 1; number <= steps; ++number) {
        float sum = 0;
        for (uint32_t worker = 0; worker < kGraceWorkers; ++worker) sum += gradient_of(worker, number, i);
        expected -= sum / kGraceWorkers;
      }
      ASSERT_NEAR(got[i], expected, 1e-3f * std::abs(expected) + 1e-3f) << i;
    }
  }
  uint64_t dropped() const {
    uint64_t all = 0;
    for (const auto& client : clients) all += client->statistics().now().dropped;
    return all;
  }

  bool is_ready = false;
  Cluster cluster;
  std::vector<std::unique_ptr<Client>> clients;
};

class ClientGrace : public ::testing::TestWithParam<const char*> {
 protected:
  const Watchdog watchdog_;
};

TEST_P(ClientGrace, AStepWaitsForALateGradientAndNoLonger) {
  GraceRun run(GetParam(), {.seconds = 3600});
  ASSERT_TRUE(run.is_ready);
  for (uint64_t number = 1; number <= 3; ++number) {
    std::vector<std::thread> first = run.begin_step(number);
    std::this_thread::sleep_for(100ms);
    run.step(2, number);
    for (std::thread& each : first) each.join();
  }
  EXPECT_EQ(run.dropped(), 0u);
  for (const auto& client : run.clients) EXPECT_EQ(client->position(), 3u);
  run.expect_all_gradients(3);
}

TEST_P(ClientGrace, ATakeoverDuringAWindowAppliesTheStepOnce) {
  GraceRun run(GetParam(), {.seconds = 3600}, /*backups=*/true);
  ASSERT_TRUE(run.is_ready);
  ASSERT_TRUE(eventually([&] {
    const absl::StatusOr<ps::proto::StatsReply> stats = run.cluster.server(0).stats();
    return stats.ok() && stats->backup() == "level";
  }));
  std::vector<std::thread> first = run.begin_step(1);
  std::this_thread::sleep_for(50ms);
  run.cluster.stop(0);
  run.step(2, 1);
  for (std::thread& each : first) each.join();
  for (const auto& client : run.clients) {
    EXPECT_EQ(client->position(), 1u);
    EXPECT_EQ(client->statistics().now().takeovers, 1u);
  }
  EXPECT_EQ(run.dropped(), 0u);
  run.expect_all_gradients(1);
}

/// The 64 buckets of each shard share one place: with a window for each of them a step would take 32 s. Over shm no
/// bucket waits for a place.
TEST(SharedPlace, AStepHasOneWindow) {
  const Watchdog watchdog;
  constexpr Duration kWindow = 500ms;
  GraceRun run("tcp", {.seconds = 0.5}, /*backups=*/false, /*slot_bytes=*/1, {{"w", {2 * 64 * 16}}});
  ASSERT_TRUE(run.is_ready);
  const TimePoint begin = Clock::now();
  std::vector<std::thread> first = run.begin_step(1);
  for (std::thread& each : first) each.join();
  const Duration took = Clock::now() - begin;
  EXPECT_GE(took, kWindow);
  EXPECT_LT(took, 32 * kWindow) << "buckets one behind the other";
}

TEST_P(ClientGrace, AWorkerThatLeavesEndsTheWindow) {
  GraceRun run(GetParam(), {.seconds = 3600});
  ASSERT_TRUE(run.is_ready);
  std::vector<std::thread> first = run.begin_step(1);
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(run.clients[2]->leave().ok());
  for (std::thread& each : first) each.join();
  EXPECT_EQ(run.clients[0]->position(), 1u);
}

TEST_P(ClientGrace, AnOpenWindowDoesNotKeepAServerFromStopping) {
  GraceRun run(GetParam(), {.seconds = 3600});
  ASSERT_TRUE(run.is_ready);
  for (const uint32_t worker : {0u, 1u}) {
    fill_gradients(*run.clients[worker], worker, 1);
    run.clients[worker]->exchange();
  }
  std::this_thread::sleep_for(50ms);  // no event exists: a worker does not learn of a window
  run.cluster.stop(0);
}

/// The learned window of `auto`: a worker that is 50 ms late in each step of 100 ms.
uint64_t late_exchanges(const Grace& grace) {
  GraceRun run("shm", grace);
  EXPECT_TRUE(run.is_ready);
  if (!run.is_ready) return 0;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> others;
  for (const uint32_t worker : {0u, 1u}) {
    others.emplace_back([&, worker] {
      for (uint64_t number = 1; !is_over; ++number) {
        std::this_thread::sleep_for(100ms);
        run.step(worker, number);
      }
      // So that no other worker waits for a gradient of this one.
      EXPECT_TRUE(run.clients[worker]->leave().ok());
    });
  }
  for (uint64_t number = 1; number <= 12; ++number) {
    std::this_thread::sleep_for(150ms);
    run.step(2, number);
  }
  const uint64_t dropped = run.clients[2]->statistics().now().dropped;
  const absl::StatusOr<ps::proto::StatsReply> stats = run.cluster.server(0).stats();
  EXPECT_TRUE(stats.ok());
  EXPECT_EQ(stats.ok() && stats->grace_window_s() > 0.0, grace.is_auto);
  is_over = true;
  EXPECT_TRUE(run.clients[2]->leave().ok());
  for (std::thread& each : others) each.join();
  return dropped;
}

/// GraceWindows has tests of the rule, with a clock of theirs.
TEST(LearnedGrace, FewerExchangesAreLate) {
  const Watchdog watchdog;
  EXPECT_LT(late_exchanges({.is_auto = true}), late_exchanges({})) << "of 12 exchanges";
}

INSTANTIATE_TEST_SUITE_P(Over, ClientGrace, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace gradrail::worker
