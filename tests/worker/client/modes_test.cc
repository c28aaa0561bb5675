// Bounded staleness, backup workers, clusters that grow, a chief that leaves, and late puts of lost workers.
#include <numeric>
#include "base/status.h"
#include "fmt/format.h"

#include "tests/worker/client/cluster.h"
#include "tests/worker/client/raw_worker.h"

namespace gradrail::worker {
namespace {

const Schema kSmall = {{"w", {40}}, {"b", {3}}};

absl::Status step(Client& client, uint32_t worker, uint64_t number) {
  fill_gradients(client, worker, number);
  client.exchange();
  return client.wait();
}

std::vector<std::unique_ptr<Client>> join_all(const Cluster& cluster, uint32_t count, ModeKind mode, uint32_t bound,
                                              bool drops_late = false) {
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t task = 0; task < count; ++task) {
    ClientOptions options = cluster.options(task);
    options.mode.kind = mode;
    options.mode.bound = bound;
    options.mode.drops_late = drops_late;
    clients.push_back(join(options, kSmall));
    if (clients.back() == nullptr) return {};
    fill_initial(*clients.back());
    if (!clients.back()->start().ok()) return {};
  }
  return clients;
}

class ClientModes : public ::testing::TestWithParam<const char*> {
 protected:
  const Watchdog watchdog_;
};

TEST_P(ClientModes, SspLetsAWorkerRunSoFarAndNoFurther) {
  Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
  const auto clients = join_all(cluster, 2, ModeKind::ssp, 2);
  ASSERT_EQ(clients.size(), 2u);
  ASSERT_TRUE(step(*clients[0], 0, 1).ok());
  ASSERT_TRUE(step(*clients[0], 0, 2).ok());
  std::atomic<bool> through = false;
  std::thread fast([&] {
    EXPECT_TRUE(step(*clients[0], 0, 3).ok());
    through = true;
  });
  while (!through && clients[0]->statistics().exchange_under_way() < 100ms) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(through) << "three steps ahead";
  EXPECT_TRUE(step(*clients[1], 1, 1).ok());
  fast.join();
  EXPECT_EQ(clients[0]->global_step(), 4u) << "it was answered with what the slower one had brought";
  EXPECT_GE(clients[0]->statistics().now().wait_ns, 90'000'000u);
  EXPECT_EQ(clients[1]->statistics().now().wait_ns, 0u);
  ASSERT_TRUE(clients[1]->pull().ok());
  EXPECT_EQ(flatten(*clients[0]), flatten(*clients[1]));
}

TEST_P(ClientModes, AStepHasOneLearningRate) {
  Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
  const auto clients = join_all(cluster, 2, ModeKind::sync, 0);
  ASSERT_EQ(clients.size(), 2u);
  EXPECT_TRUE(absl::IsInvalidArgument(clients[0]->set_learning_rate(-1.0f)));
  EXPECT_TRUE(absl::IsInvalidArgument(clients[0]->set_learning_rate(std::numeric_limits<float>::infinity())));
  ASSERT_TRUE(clients[0]->set_learning_rate(2.0f).ok());
  ASSERT_TRUE(clients[1]->set_learning_rate(std::nextafter(2.0f, 3.0f)).ok());
  std::thread other([&] { EXPECT_TRUE(step(*clients[1], 1, 1).ok()); });
  EXPECT_TRUE(step(*clients[0], 0, 1).ok());
  other.join();
  const std::vector<float> got = flatten(*clients[0]);
  EXPECT_EQ(got, flatten(*clients[1]));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], initial_of(i) - (gradient_of(0, 1, i) + gradient_of(1, 1, i))) << "element " << i;
}

TEST_P(ClientModes, AnotherLearningRateIsRefused) {
  Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
  const auto clients = join_all(cluster, 2, ModeKind::sync, 0);
  ASSERT_EQ(clients.size(), 2u);
  ASSERT_TRUE(clients[1]->set_learning_rate(8.0f).ok());
  std::thread other([&] {
    const absl::Status refused = step(*clients[1], 1, 1);
    EXPECT_THAT(std::string(refused.message()),
                testing::HasSubstr("step 1: worker 1 has the learning rate 8, worker 0 has "));
  });
  EXPECT_TRUE(step(*clients[0], 0, 1).ok()) << "without the other worker";
  other.join();
  const std::vector<float> got = flatten(*clients[0]);
  const float rate = cluster.options(0, ModeKind::sync).optimizer.learning_rate;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], initial_of(i) - rate * gradient_of(0, 1, i)) << "element " << i;
}

TEST_P(ClientModes, AWorkerThatJoinsAgainFollowsTheRateOfTheOthers) {
  Cluster cluster({.worker_count = 2, .transports = {GetParam()}});
  auto clients = join_all(cluster, 2, ModeKind::sync, 0);
  ASSERT_EQ(clients.size(), 2u);
  in_parallel(2, [&](uint32_t task) {
    ASSERT_TRUE(clients[task]->set_learning_rate(0.5f).ok());
    EXPECT_TRUE(step(*clients[task], task, 1).ok());
  });
  ASSERT_TRUE(clients[0]->leave().ok());
  clients[0] = join(cluster.options(0, ModeKind::sync), kSmall);  // with the rate of its options
  ASSERT_NE(clients[0], nullptr);
  ASSERT_TRUE(clients[0]->start().ok());
  std::thread other([&] {
    EXPECT_THAT(std::string(step(*clients[0], 0, 2).message()),
                testing::HasSubstr("step 2: worker 0 has the learning rate 1, worker 1 has 0.5"));
  });
  EXPECT_TRUE(step(*clients[1], 1, 2).ok());
  other.join();
}

TEST_P(ClientModes, QuorumDropsTheLateGradientAndLeadsTheStragglerOn) {
  Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
  const auto clients = join_all(cluster, 2, ModeKind::quorum, 1, true);
  ASSERT_EQ(clients.size(), 2u);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(step(*clients[0], 0, i).ok());
  EXPECT_EQ(clients[1]->position(), 0u);
  ASSERT_TRUE(step(*clients[1], 1, 1).ok());
  EXPECT_EQ(clients[1]->position(), 3u);
  EXPECT_EQ(clients[1]->statistics().now().dropped, 1u);
  EXPECT_EQ(flatten(*clients[1]), flatten(*clients[0])) << "nothing of it was added";
  ASSERT_TRUE(step(*clients[1], 1, 4).ok());
  EXPECT_EQ(clients[1]->position(), 4u);
  EXPECT_EQ(clients[1]->statistics().now().dropped, 1u);
  ASSERT_TRUE(clients[0]->pull().ok());
  const std::vector<float> got = flatten(*clients[0]);
  for (size_t i = 0; i < got.size(); ++i) {
    float expected = initial_of(i) - gradient_of(1, 4, i);
    for (uint64_t k = 1; k <= 3; ++k) expected -= gradient_of(0, k, i);
    ASSERT_EQ(got[i], expected) << i;
  }
}

TEST_P(ClientModes, ALateGradientOfAQuorumIsPartOfTheNextStep) {
  for (const PushFormat push : {PushFormat::fp32, PushFormat::int8}) {
    Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
    std::vector<std::unique_ptr<Client>> clients;
    for (uint32_t worker = 0; worker < 2; ++worker) {
      ClientOptions options = cluster.options(worker, ModeKind::quorum);
      options.mode.bound = 1;
      options.compression.push = push;
      clients.push_back(join(options, kSmall));
      ASSERT_NE(clients.back(), nullptr);
      if (worker == 0) fill_initial(*clients[0]);
      ASSERT_TRUE(clients.back()->start().ok());
    }
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(step(*clients[0], 0, i).ok());
    for (uint64_t i = 1; i <= 2; ++i) {
      ASSERT_TRUE(step(*clients[1], 1, i).ok());
      EXPECT_EQ(clients[1]->position(), 3 + i) << "where the others are, and its own step";
      const ClientStats stats = clients[1]->statistics().now();
      EXPECT_EQ(stats.dropped, 1u) << "late once";
      EXPECT_EQ(stats.staleness_sum, 3u) << "the steps without the late gradient";
      EXPECT_EQ(std::accumulate(stats.staleness.begin(), stats.staleness.end(), uint64_t{0}), stats.exchange_count);
    }
    const std::vector<float> got = flatten(*clients[1]);
    float largest = 0;
    for (size_t i = 0; i < got.size(); ++i) largest = std::max(largest, std::abs(gradient_of(1, 2, i)));
    for (size_t i = 0; i < got.size(); ++i) {
      float expected = initial_of(i);
      for (uint64_t k = 1; k <= 3; ++k) expected -= gradient_of(0, k, i);
      for (uint64_t k = 1; k <= 2; ++k) expected -= gradient_of(1, k, i);
      // The rounding of int8: half a step of each worker.
      ASSERT_NEAR(got[i], expected, push == PushFormat::fp32 ? 0 : largest / 60) << i;
    }
  }
}

uint64_t updates(Cluster& cluster) {
  const auto stats = cluster.server(0).stats();
  return stats.ok() ? stats->updates() : 0;
}

// Each of the two is in time with one tensor and late with the other.
TEST_P(ClientModes, ALateBucketOfAQuorumIsPushedAgainAloneAndOnce) {
  const Schema schema = {{"a", {64}}, {"b", {64}}};
  Cluster cluster({.worker_count = 2, .transports = {GetParam()}});
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t worker = 0; worker < 2; ++worker) {
    ClientOptions options = cluster.options(worker, ModeKind::quorum);
    options.mode.bound = 1;
    options.bucket_bytes = 256;
    clients.push_back(join(options, schema));
    ASSERT_NE(clients.back(), nullptr);
    if (worker == 0) fill_initial(*clients[0]);
    ASSERT_TRUE(clients.back()->start().ok());
  }
  fill_gradients(*clients[1], 1, 1);
  clients[1]->ready(0);
  const std::vector<float> initial = flatten(*clients[0]);
  ASSERT_TRUE(eventually([&] { return clients[0]->pull().ok() && flatten(*clients[0]) != initial; }));
  std::thread first([&] { EXPECT_TRUE(step(*clients[0], 0, 1).ok()); });
  // Late with a, which is in step 2 then, and absent from step 2 of b.
  EXPECT_TRUE(eventually([&] { return updates(cluster) == 3; }));
  clients[1]->exchange();
  EXPECT_TRUE(clients[1]->wait().ok());
  first.join();
  for (const auto& client : clients) {
    EXPECT_EQ(client->position(), 2u) << "one tensor in step 1, the other one in step 2";
    EXPECT_EQ(client->statistics().now().dropped, 1u);
  }
  const std::vector<float> got = flatten(*clients[1]);
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], initial_of(i) - gradient_of(0, 1, i) - gradient_of(1, 1, i)) << i;
}

TEST_P(ClientModes, SyncTakesAWorkerBeyondTheWorkerCount) {
  Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {GetParam()}});
  const auto clients = join_all(cluster, 1, ModeKind::sync, 0);
  ASSERT_EQ(clients.size(), 1u);
  for (uint64_t i = 1; i <= 2; ++i) ASSERT_TRUE(step(*clients[0], 0, i).ok());
  ClientOptions options = cluster.options(4);
  options.mode.kind = ModeKind::sync;
  options.cluster.workers.push_back("127.0.0.1:9");  // its list has more workers than the lists of the others
  const std::unique_ptr<Client> late = join(options, kSmall);
  ASSERT_NE(late, nullptr);
  ASSERT_TRUE(late->start().ok());
  EXPECT_EQ(late->position(), 2u);
  std::thread other([&] { EXPECT_TRUE(step(*late, 4, 3).ok()); });
  EXPECT_TRUE(step(*clients[0], 0, 3).ok());
  other.join();
  EXPECT_EQ(flatten(*late), flatten(*clients[0]));
  ASSERT_TRUE(late->leave().ok());
  EXPECT_TRUE(step(*clients[0], 0, 4).ok());
  EXPECT_EQ(clients[0]->position(), 4u);
}

TEST_P(ClientModes, NoWorkerWaitsForAWorkerThatHasFinished) {
  for (const ModeKind mode : {ModeKind::sync, ModeKind::ssp, ModeKind::quorum}) {
    Cluster cluster({.ps_count = 2, .shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
    const auto clients = join_all(cluster, 2, mode, mode == ModeKind::sync ? 0 : mode == ModeKind::ssp ? 1 : 2);
    ASSERT_EQ(clients.size(), 2u);
    std::thread other([&] { EXPECT_TRUE(step(*clients[1], 1, 1).ok()); });
    EXPECT_TRUE(step(*clients[0], 0, 1).ok());
    other.join();
    EXPECT_TRUE(clients[0]->finish_steps().ok());
    for (uint64_t i = 2; i <= 5; ++i) ASSERT_TRUE(step(*clients[1], 1, i).ok());
    ASSERT_TRUE(clients[0]->pull().ok());
    EXPECT_EQ(flatten(*clients[0]), flatten(*clients[1]));
    const absl::Status again = step(*clients[0], 0, mode == ModeKind::ssp ? 2 : 6);
    EXPECT_THAT(std::string(again.message()), ::testing::HasSubstr("the worker has finished its steps"));
  }
}

INSTANTIATE_TEST_SUITE_P(Over, ClientModes, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST(ClientChief, TheNextOneGivesTheInitialValues) {
  const Watchdog watchdog;
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {transport}});
    std::unique_ptr<Client> chief = join(cluster.options(0), kSmall);
    const std::unique_ptr<Client> next = join(cluster.options(1), kSmall);
    ASSERT_TRUE(chief != nullptr && next != nullptr);
    EXPECT_TRUE(chief->is_chief());
    EXPECT_FALSE(next->is_chief());
    fill_initial(*next);
    absl::Status started;
    std::thread waiting([&] { started = next->start(); });
    std::this_thread::sleep_for(50ms);  // so that most runs have the pull under way
    ASSERT_TRUE(chief->give_up("its disk").ok());
    waiting.join();
    EXPECT_TRUE(started.ok()) << started;
    EXPECT_TRUE(next->is_chief());
    const std::vector<float> values = flatten(*next);
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], initial_of(i));
    EXPECT_TRUE(step(*next, 1, 1).ok());
  }
}

TEST(ClientChief, ComesBackToALowerWorkerThatJoins) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2});
  std::unique_ptr<Client> first = join(cluster.options(0), kSmall);
  const std::unique_ptr<Client> second = join(cluster.options(1), kSmall);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  ASSERT_TRUE(first->give_up("its disk").ok());
  first.reset();
  const auto wait_until_chief = [&](bool is) {
    const TimePoint deadline = Clock::now() + 20s;
    while (second->is_chief() != is && Clock::now() < deadline) std::this_thread::sleep_for(10ms);
    return second->is_chief() == is;
  };
  EXPECT_TRUE(wait_until_chief(true));
  first = join(cluster.options(0), kSmall);
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(first->is_chief());
  EXPECT_TRUE(wait_until_chief(false));
}

/// The connection of a lost worker is still open, and its slots are still mapped: its late puts must be ignored.
TEST(ClientFence, LatePutsOfALostIncarnationAreNeverApplied) {
  const Watchdog watchdog;
  for (const char* transport : {"shm", "tcp"}) {
    for (const ModeKind mode : {ModeKind::async, ModeKind::sync, ModeKind::ssp}) {
      Cluster cluster({.worker_count = 2, .transports = {transport}});
      ClientOptions options[2] = {cluster.options(0, mode), cluster.options(1, mode)};
      const std::unique_ptr<Client> client = join(options[0], kSmall);
      ASSERT_NE(client, nullptr);
      fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      RawWorker lost(options[1], kSmall);
      ASSERT_TRUE(lost.join().ok());
      ASSERT_TRUE(lost.start_handshake({.transport = transport}).ok());
      const ps::SlotHeader late = lost.header(0, 43 * sizeof(float));
      lost.vanish();
      ASSERT_TRUE(step(*client, 0, 1).ok());  // sync and ssp: only once the loss is known
      ASSERT_TRUE(client->barriers().wait("until the loss is known").ok());
      lost.push(late, 0);
      for (uint64_t i = 2; i <= 4; ++i) ASSERT_TRUE(step(*client, 0, i).ok());
      EXPECT_EQ(client->global_step(), 4u);
      const std::vector<float> got = flatten(*client);
      for (size_t i = 0; i < got.size(); ++i) {
        float expected = initial_of(i);
        for (uint64_t k = 1; k <= 4; ++k) expected -= gradient_of(0, k, i);
        ASSERT_EQ(got[i], expected) << i;
      }
    }
  }
}

}  // namespace
}  // namespace gradrail::worker
