// Workers and parameter servers in one process: each value arrives once, in order, and without a changed bit.
#include <numeric>
#include <random>

#include "base/random.h"
#include "fmt/format.h"
#include "ps/protocol/exchange_layout.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

struct Case {
  std::string transport;
  ModeKind mode = ModeKind::async;
  uint32_t ps_count = 1;
  uint32_t shards_per_ps = 1;
};

class ClientExchange : public ::testing::TestWithParam<Case> {
 protected:
  explicit ClientExchange(uint32_t worker_count = 2)
      : cluster_({.ps_count = GetParam().ps_count,
                  .shards_per_ps = GetParam().shards_per_ps,
                  .worker_count = worker_count,
                  .transports = {GetParam().transport}}) {}

  ClientOptions options(uint32_t task_index) const {
    ClientOptions options = cluster_.options(task_index);
    options.mode.kind = GetParam().mode;
    return options;
  }

  /// After `steps` exchanges of two workers with gradient_of().
  static std::vector<float> expected(ModeKind mode, size_t elements, uint64_t steps) {
    std::vector<float> values(elements);
    const float scale = mode == ModeKind::sync ? 0.5f : 1.0f;
    for (size_t i = 0; i < elements; ++i) {
      values[i] = initial_of(i);
      for (uint64_t step = 1; step <= steps; ++step) {
        values[i] -= scale * (gradient_of(0, step, i) + gradient_of(1, step, i));
      }
    }
    return values;
  }

  /// Both workers take `steps` steps; returns what each holds after a last pull.
  void train(uint64_t steps, const Schema& schema, const std::function<void(ClientOptions&)>& change = {}) {
    const Watchdog watchdog;
    in_parallel(2, [&](uint32_t task) {
      ClientOptions mine = options(task);
      if (change) change(mine);
      const std::unique_ptr<Client> client = join(mine, schema);
      ASSERT_NE(client, nullptr);
      if (task == 0) fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      for (uint64_t step = 1; step <= steps; ++step) {
        fill_gradients(*client, task, step);
        client->exchange();
        const absl::Status waited = client->wait();
        ASSERT_TRUE(waited.ok()) << waited;
        if (GetParam().mode == ModeKind::sync) {
          ASSERT_EQ(client->global_step(), step);
          ASSERT_EQ(flatten(*client), expected(ModeKind::sync, flatten(*client).size(), step)) << "step " << step;
        }
      }
      ASSERT_TRUE(client->barriers().wait("done").ok());
      ASSERT_TRUE(client->pull().ok());
      const std::vector<float> got = flatten(*client);
      EXPECT_EQ(got, expected(GetParam().mode, got.size(), steps));
      EXPECT_EQ(client->global_step(), GetParam().mode == ModeKind::sync ? steps : 2 * steps);
      EXPECT_EQ(client->statistics().now().exchange_count, steps);
      EXPECT_TRUE(client->leave().ok());
    });
    for (uint32_t i = 0; i < GetParam().ps_count; ++i) EXPECT_TRUE(cluster_.outcome(i).ok());
  }

  Cluster cluster_;
};

TEST_P(ClientExchange, EveryGradientCountsOnce) { train(20, odd_schema()); }

TEST_P(ClientExchange, BucketsOf64Bytes) {
  train(5, odd_schema(), [](ClientOptions& options) { options.bucket_bytes = 64; });
}

TEST_P(ClientExchange, WithChecksums) {
  train(5, odd_schema(), [](ClientOptions& options) { options.transport.checksums = true; });
}

TEST_P(ClientExchange, PushesInBf16WithChecksumsAndBucketsOf64Bytes) {
  train(5, odd_schema(), [](ClientOptions& options) {
    options.compression.push = PushFormat::bf16;
    options.bucket_bytes = 64;
    options.transport.checksums = true;
  });
}

/// Answers that take several turns to be sent, while the other worker's gradients change what they are taken from.
TEST_P(ClientExchange, WithChecksumsOfLargeBuckets) {
  const auto change = [](ClientOptions& options) {
    options.transport.checksums = true;
    options.bucket_bytes = 8 << 20;
  };
  train(10, {{"w", {2048, 1024}}}, change);
}

TEST_P(ClientExchange, MoreShardsThanElements) { train(5, {{"w", {1}}, {"b", {2}}}); }

/// The result of a run of one worker, whose pushes are applied alone, at another learning rate in each step.
struct LoneRun {
  std::vector<float> parameters;
  uint64_t global_step = 0, staleness = 0, pushed = 0, returned = 0;
  bool operator==(const LoneRun&) const = default;
};

LoneRun train_alone(ClientOptions options, float weight) {
  LoneRun run;
  options.mode.worker_count = 1;
  options.optimizer = {.kind = OptimizerKind::momentum, .learning_rate = 0.5f, .momentum = 0.5f};
  options.bucket_bytes = 4096;
  const std::unique_ptr<Client> client = join(options, odd_schema());
  if (client == nullptr) return run;
  fill_initial(*client);
  EXPECT_TRUE(client->start().ok());
  for (uint64_t step = 1; step <= 6; ++step) {
    fill_gradients(*client, 0, step);
    EXPECT_TRUE(client->set_learning_rate(1.0f / static_cast<float>(step)).ok());
    EXPECT_TRUE(client->set_weight(weight).ok());
    client->exchange();
    EXPECT_TRUE(client->wait().ok());
  }
  run.parameters = flatten(*client);
  run.global_step = client->global_step();
  const ClientStats stats = client->statistics().now();
  run.staleness = stats.staleness_sum;
  run.pushed = stats.bytes_pushed;
  run.returned = stats.bytes_returned;
  EXPECT_TRUE(client->leave().ok());
  return run;
}

/// A push with a weight takes the general way at the shard. The weight of a lone gradient changes no mean.
TEST(ClientLonePush, HasTheResultOfTheGeneralWay) {
  const Watchdog watchdog;
  for (const std::string transport : {"shm", "tcp"}) {
    for (const ModeKind mode : {ModeKind::async, ModeKind::sync}) {
      SCOPED_TRACE(fmt::format("{} {}", transport, static_cast<int>(mode)));
      std::vector<LoneRun> runs;
      for (const float weight : {1.0f, 2.0f}) {
        Cluster cluster({.worker_count = 1, .transports = {transport}});
        runs.push_back(train_alone(cluster.options(0, mode), weight));
      }
      EXPECT_EQ(runs[0].global_step, 6u);
      EXPECT_FALSE(runs[0].parameters.empty());
      EXPECT_TRUE(runs[0] == runs[1]);
    }
  }
}

TEST_P(ClientExchange, TensorsBecomeReadyInAnyOrder) {
  const Watchdog watchdog;
  constexpr uint64_t kSteps = 12;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  in_parallel(2, [&](uint32_t task) {
    ClientOptions mine = options(task);
    mine.bucket_bytes = 64;
    const std::unique_ptr<Client> client = join(mine, odd_schema());
    ASSERT_NE(client, nullptr);
    if (task == 0) fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    Random random(seed, task);
    std::vector<size_t> order(odd_schema().size());
    std::iota(order.begin(), order.end(), 0);
    for (uint64_t step = 1; step <= kSteps; ++step) {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
      // A tensor has its gradient from ready() on: a bucket that left earlier would carry an old one.
      const size_t announced = random.below(order.size() + 1);
      for (size_t i = 0; i < order.size(); ++i) {
        fill_gradient(*client, order[i], task, step);
        if (i < announced) client->ready(order[i]);
      }
      // When all were announced the exchange is under way without being asked for.
      if (announced < order.size() || step % 2 == 0) client->exchange();
      ASSERT_TRUE(client->wait().ok());
    }
    ASSERT_TRUE(client->barriers().wait("done").ok());
    ASSERT_TRUE(client->pull().ok());
    const std::vector<float> got = flatten(*client);
    EXPECT_EQ(got, expected(GetParam().mode, got.size(), kSteps));
  });
}

TEST_P(ClientExchange, CompleteBucketsLeaveBeforeTheRest) {
  const Watchdog watchdog;
  const std::unique_ptr<Client> client = join(
      [&] {
        ClientOptions mine = options(0);
        mine.mode.kind = ModeKind::async;
        mine.bucket_bytes = 64;
        return mine;
      }(),
      odd_schema());
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->start().ok());
  const uint64_t before = client->statistics().now().bytes_pushed;
  client->ready(4);
  const uint64_t after_last = client->statistics().now().bytes_pushed;
  client->exchange();
  const uint64_t after_all = client->statistics().now().bytes_pushed;
  EXPECT_GE(after_last - before, 129 * 33 * sizeof(float) - 64);
  EXPECT_LT(after_last - before, after_all - before);
  EXPECT_TRUE(client->wait().ok());
}

TEST_P(ClientExchange, AWaitForAGradientThatIsNotDeclaredIsRefused) {
  const Watchdog watchdog;
  ClientOptions mine = options(0);
  mine.mode.kind = ModeKind::async;
  const std::unique_ptr<Client> client = join(mine, odd_schema());
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->start().ok());
  client->ready(4);
  client->ready(4);
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = client->wait();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  }
  client->exchange();
  EXPECT_TRUE(client->wait().ok()) << "the refusal changes nothing";
  EXPECT_EQ(client->global_step(), 1u);
}

TEST_P(ClientExchange, AnIndexBeyondTheLastTensorStopsTheProcess) {
  const Watchdog watchdog;
  ClientOptions mine = options(0);
  mine.mode.kind = ModeKind::async;
  const std::unique_ptr<Client> client = join(mine, odd_schema());
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->start().ok());
  EXPECT_DEATH(client->ready(odd_schema().size()), "broken invariant: tensor_index < ");
  EXPECT_DEATH(client->exchange(1), "broken invariant: fragment < ");
  EXPECT_DEATH(client->wait(1).IgnoreError(), "broken invariant: fragment < ");
}

TEST_P(ClientExchange, PathsNameTheTransport) {
  const Watchdog watchdog;
  ClientOptions mine = options(0);
  mine.mode.kind = ModeKind::async;
  const std::unique_ptr<Client> client = join(mine, odd_schema());
  ASSERT_NE(client, nullptr);
  const std::vector<std::string> paths = client->statistics().now().paths;
  ASSERT_EQ(paths.size(), GetParam().ps_count * GetParam().shards_per_ps);
  for (const std::string& path : paths) EXPECT_NE(path.find(GetParam().transport), std::string::npos) << path;
}

/// Three workers, so that sums depend on their order, and an optimizer that rounds in each operation.
std::vector<float> rounded_run(const Case& shape, uint64_t seed, PushFormat push = PushFormat::fp32) {
  Cluster cluster({.ps_count = shape.ps_count,
                   .shards_per_ps = shape.shards_per_ps,
                   .worker_count = 3,
                   .transports = {shape.transport}});
  std::vector<float> result;
  in_parallel(3, [&](uint32_t task) {
    ClientOptions mine = cluster.options(task);
    mine.mode.kind = ModeKind::sync;
    mine.compression.push = push;
    mine.optimizer = {.kind = OptimizerKind::adam, .learning_rate = 0.01f};
    const std::unique_ptr<Client> client = join(mine, odd_schema());
    ASSERT_NE(client, nullptr);
    Random random(seed, task);
    const auto fill = [&](auto tensor) {
      for (float& value : tensor) value = static_cast<float>(random.normal());
    };
    if (task == 0) {
      for (size_t i = 0; i < odd_schema().size(); ++i) fill(client->parameters(i));
    }
    ASSERT_TRUE(client->start().ok());
    for (int step = 0; step < 10; ++step) {
      for (size_t i = 0; i < odd_schema().size(); ++i) fill(client->gradients(i));
      client->exchange();
      ASSERT_TRUE(client->wait().ok());
    }
    if (task == 1) result = flatten(*client);
  });
  return result;
}

TEST(ClientReproducibility, SyncRunsAgreeBitForBitOverEveryTransportAndCut) {
  const Watchdog watchdog;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const std::vector<float> first = rounded_run({.transport = "shm"}, seed);
  ASSERT_FALSE(first.empty());
  EXPECT_EQ(first, rounded_run({.transport = "shm"}, seed));
  EXPECT_EQ(first, rounded_run({.transport = "tcp"}, seed));
  EXPECT_EQ(first, rounded_run({.transport = "tcp", .ps_count = 2, .shards_per_ps = 2}, seed));
  EXPECT_NE(first, rounded_run({.transport = "shm"}, seed + 1));
  const std::vector<float> packed = rounded_run({.transport = "shm"}, seed, PushFormat::bf16);
  EXPECT_NE(first, packed);
  EXPECT_EQ(packed, rounded_run({.transport = "tcp"}, seed, PushFormat::bf16));
  EXPECT_EQ(packed, rounded_run({.transport = "tcp", .ps_count = 2, .shards_per_ps = 2}, seed, PushFormat::bf16));
}

TEST(ClientPush, WhatTheRoundingLeavesOutFollowsInLaterSteps) {
  const Watchdog watchdog;
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster({.worker_count = 1, .transports = {transport}});
    ClientOptions options = cluster.options(0);
    options.compression.push = PushFormat::bf16;
    const std::unique_ptr<Client> client = join(options, {{"w", {1000}}});
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(client->start().ok());
    constexpr float kGradient = 1.0f + 0x1p-9f;  // bf16 has 1 and 1 + 2^-7
    constexpr int kSteps = 512;
    for (int step = 0; step < kSteps; ++step) {
      for (float& value : client->gradients(0)) value = kGradient;
      client->exchange();
      ASSERT_TRUE(client->wait().ok());
    }
    for (const float value : client->parameters(0)) ASSERT_NEAR(value, -kSteps * kGradient, 0x1p-8);
    EXPECT_EQ(client->gradients(0)[0], kGradient) << "the gradients belong to the trainer";
    const uint64_t headers = kSteps * sizeof(ps::SlotHeader);
    const uint64_t pull = sizeof(ps::SlotHeader), initial = 1000 * sizeof(float);
    EXPECT_LE(client->statistics().now().bytes_pushed, kSteps * 1000 * 2 + headers + pull + initial);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* transport : {"shm", "tcp"}) {
    for (const ModeKind mode : {ModeKind::async, ModeKind::sync}) {
      for (const uint32_t count : {1, 2}) all.push_back({transport, mode, count, count});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Every, ClientExchange, ::testing::ValuesIn(cases()), [](const auto& each) {
  return fmt::format("{}_{}_{}x{}", each.param.transport, each.param.mode == ModeKind::sync ? "sync" : "async",
                     each.param.ps_count, each.param.shards_per_ps);
});

}  // namespace
}  // namespace gradrail::worker
