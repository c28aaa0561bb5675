// Fragments of a model: steps of their own, exchanges that overlap, checkpoints and takeovers. Weights of gradients.
#include <cstring>

#include "base/status.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/schema.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

/// The tensors of a fragment do not follow each other, and no tensor has the size of a bucket.
const Schema kFragments = {{"a1", {70}, "a"}, {"b1", {33}, "b"}, {"a2", {5, 9}, "a"}, {"rest", {100}}};
constexpr uint32_t kA = 0, kB = 1, kRest = 2;

ClientOptions options_of(const Cluster& cluster, uint32_t worker, ModeKind mode) {
  ClientOptions options = cluster.options(worker, mode);
  options.bucket_bytes = 256;
  return options;
}

std::unique_ptr<Client> start(const ClientOptions& options) {
  std::unique_ptr<Client> client = join(options, kFragments);
  if (client == nullptr) return nullptr;
  fill_initial(*client);
  return client->start().ok() ? std::move(client) : nullptr;
}

/// One step of one fragment. Gradients of the others hold NaN: they must stay here.
absl::Status step(Client& client, uint32_t fragment, uint32_t worker, uint64_t number) {
  const ps::Layout layout = ps::layout_of(client.schema());
  for (size_t tensor = 0; tensor < kFragments.size(); ++tensor) {
    if (layout.tensor_fragment[tensor] == fragment) {
      fill_gradient(client, tensor, worker, number);
    } else {
      for (float& element : client.gradients(tensor)) element = NAN;
    }
  }
  client.exchange(fragment);
  return client.wait(fragment);
}

/// After `steps` steps of each fragment by each of `worker_count` workers, with a mean over `divisor` of them.
void expect_steps(Client& client, const std::vector<uint64_t>& steps, uint32_t worker_count, float divisor) {
  const ps::Layout layout = ps::layout_of(client.schema());
  size_t element = 0;  // counted over all tensors, as fill_initial() and fill_gradient() do
  for (size_t tensor = 0; tensor < kFragments.size(); ++tensor) {
    for (const float value : client.parameters(tensor)) {
      float expected = initial_of(element);
      for (uint64_t k = 1; k <= steps[layout.tensor_fragment[tensor]]; ++k) {
        float sum = 0;
        for (uint32_t worker = 0; worker < worker_count; ++worker) sum += gradient_of(worker, k, element);
        expected -= sum / divisor;
      }
      ASSERT_EQ(value, expected) << kFragments[tensor].name << " element " << element;
      ++element;
    }
  }
}

class ClientFragments : public ::testing::TestWithParam<const char*> {
 protected:
  const Watchdog watchdog_;
};

TEST_P(ClientFragments, CountTheirOwnStepsInEachMode) {
  for (const ModeKind mode : {ModeKind::async, ModeKind::sync, ModeKind::ssp, ModeKind::quorum}) {
    Cluster cluster({.ps_count = 2, .shards_per_ps = 2, .worker_count = 1, .transports = {GetParam()}});
    ClientOptions options = options_of(cluster, 0, mode);
    options.mode.bound = mode == ModeKind::quorum ? 1 : 0;
    const std::unique_ptr<Client> client = start(options);
    ASSERT_NE(client, nullptr);
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(step(*client, kB, 0, i).ok());
    ASSERT_TRUE(step(*client, kA, 0, 1).ok());
    EXPECT_EQ(client->global_step(kA), 1u);
    EXPECT_EQ(client->global_step(kB), 3u);
    EXPECT_EQ(client->global_step(kRest), 0u);
    EXPECT_EQ(client->position(), 1u) << "of the first fragment";
    expect_steps(*client, {1, 3, 0}, 1, 1.0f);
  }
}

TEST_P(ClientFragments, ExchangesOverlap) {
  Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t worker = 0; worker < 2; ++worker) {
    clients.push_back(start(options_of(cluster, worker, ModeKind::sync)));
    ASSERT_NE(clients.back(), nullptr);
  }
  // Each worker begins with another fragment, so that neither exchange can end before the second one has begun.
  in_parallel(2, [&](uint32_t worker) {
    Client& client = *clients[worker];
    for (uint64_t number = 1; number <= 5; ++number) {
      fill_gradients(client, worker, number);
      const uint32_t first = worker == 0 ? kA : kB, second = worker == 0 ? kB : kA;
      client.exchange(first);
      client.exchange(second);
      ASSERT_TRUE(client.wait(second).ok());
      ASSERT_TRUE(client.wait(first).ok());
    }
    // Without a fragment: all of them.
    fill_gradients(client, worker, 6);
    client.ready(1);
    client.exchange();
    ASSERT_TRUE(client.wait().ok());
  });
  for (const auto& client : clients) {
    EXPECT_EQ(client->global_step(kA), 6u);
    EXPECT_EQ(client->global_step(kRest), 1u);
    EXPECT_EQ(client->statistics().now().exchange_count, 13u);
    const std::vector<float> got = flatten(*client);
    EXPECT_EQ(std::count_if(got.begin(), got.end(), [](float value) { return std::isnan(value); }), 0);
  }
  EXPECT_EQ(flatten(*clients[0]), flatten(*clients[1]));
}

TEST_P(ClientFragments, ALateWorkerBeginsEachFragmentWhereTheOthersAre) {
  for (const ModeKind mode : {ModeKind::sync, ModeKind::ssp}) {
    Cluster cluster({.ps_count = 2, .worker_count = 1, .transports = {GetParam()}});
    const std::unique_ptr<Client> first = start(options_of(cluster, 0, mode));
    ASSERT_NE(first, nullptr);
    for (uint64_t i = 1; i <= 7; ++i) ASSERT_TRUE(step(*first, kB, 0, i).ok());
    ClientOptions options = options_of(cluster, 1, mode);
    options.cluster.workers.push_back("127.0.0.1:9");
    const std::unique_ptr<Client> late = start(options);
    ASSERT_NE(late, nullptr);
    EXPECT_EQ(late->global_step(kB), 7u);
    std::thread other([&] {
      EXPECT_TRUE(step(*late, kB, 1, 8).ok());
      EXPECT_TRUE(step(*late, kA, 1, 1).ok());
    });
    EXPECT_TRUE(step(*first, kB, 0, 8).ok());
    EXPECT_TRUE(step(*first, kA, 0, 1).ok());
    other.join();
    EXPECT_EQ(late->statistics().now().dropped, 0u);
    ASSERT_TRUE(first->pull().ok());
    ASSERT_TRUE(late->pull().ok());
    EXPECT_EQ(flatten(*first), flatten(*late));
    EXPECT_EQ(first->global_step(kB), mode == ModeKind::sync ? 8u : 9u) << "ssp applies the two gradients one by one";
  }
}

TEST_P(ClientFragments, ACheckpointHasTheStepOfEach) {
  const TemporaryFolder folder;
  std::vector<float> saved;
  {
    Cluster cluster({.ps_count = 2, .worker_count = 1, .transports = {GetParam()}, .checkpoint_dir = folder.path()});
    const std::unique_ptr<Client> client = start(options_of(cluster, 0, ModeKind::sync));
    ASSERT_NE(client, nullptr);
    for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(step(*client, kB, 0, i).ok());
    ASSERT_TRUE(step(*client, kA, 0, 1).ok());
    const auto files = client->checkpoints().save();
    ASSERT_TRUE(files.ok()) << files.status();
    saved = flatten(*client);
  }
  // Onto another number of shards.
  Cluster cluster({.ps_count = 1,
                   .shards_per_ps = 3,
                   .worker_count = 1,
                   .transports = {GetParam()},
                   .checkpoint_dir = folder.path()});
  Schema other = kFragments;
  other[1].fragment = "a";
  const absl::Status refused = Client::join(options_of(cluster, 0, ModeKind::sync), other).status();
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("of fragment 'b'")) << refused;
  const std::unique_ptr<Client> client = start(options_of(cluster, 0, ModeKind::sync));
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(flatten(*client), saved);
  EXPECT_EQ(client->global_step(kA), 1u);
  EXPECT_EQ(client->global_step(kB), 4u);
  EXPECT_EQ(client->global_step(kRest), 0u);
  ASSERT_TRUE(step(*client, kB, 0, 5).ok());
  EXPECT_EQ(client->global_step(kB), 5u);
  expect_steps(*client, {1, 5, 0}, 1, 1.0f);
}

TEST_P(ClientFragments, ABackupContinuesEach) {
  Cluster cluster({.worker_count = 1, .transports = {GetParam()}, .backups = true});
  const std::unique_ptr<Client> client = start(options_of(cluster, 0, ModeKind::sync));
  ASSERT_NE(client, nullptr);
  for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(step(*client, kB, 0, i).ok());
  ASSERT_TRUE(eventually([&] {
    const auto stats = cluster.server(0).stats();
    return stats.ok() && stats->backup() == "level";
  }));
  cluster.stop(0);
  ASSERT_TRUE(step(*client, kA, 0, 1).ok());
  ASSERT_TRUE(step(*client, kB, 0, 5).ok());
  EXPECT_EQ(client->statistics().now().takeovers, 1u);
  expect_steps(*client, {1, 5, 0}, 1, 1.0f);
}

TEST_P(ClientFragments, AMeanHasTheWeightsOfItsGradients) {
  for (const PushFormat push : {PushFormat::fp32, PushFormat::bf16}) {
    Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
    std::vector<std::unique_ptr<Client>> clients(2);
    in_parallel(2, [&](uint32_t worker) {
      ClientOptions options = options_of(cluster, worker, ModeKind::sync);
      options.compression.push = push;
      clients[worker] = start(options);
      ASSERT_NE(clients[worker], nullptr);
      EXPECT_TRUE(absl::IsInvalidArgument(clients[worker]->set_weight(0.0f)));
      EXPECT_TRUE(absl::IsInvalidArgument(clients[worker]->set_weight(NAN)));
      ASSERT_TRUE(clients[worker]->set_weight(worker == 0 ? 300.0f : 100.0f).ok());
      fill_gradients(*clients[worker], worker, 1);
      clients[worker]->exchange();
      ASSERT_TRUE(clients[worker]->wait().ok());
      ASSERT_TRUE(clients[worker]->set_weight(7.0f).ok());
      fill_gradients(*clients[worker], worker, 2);
      clients[worker]->exchange();
      ASSERT_TRUE(clients[worker]->wait().ok());
    });
    const std::vector<float> got = flatten(*clients[0]);
    EXPECT_EQ(got, flatten(*clients[1]));
    for (size_t i = 0; i < got.size(); ++i) {
      float expected = initial_of(i) - (gradient_of(0, 1, i) * 0.75f + gradient_of(1, 1, i) * 0.25f);
      expected -= (gradient_of(0, 2, i) + gradient_of(1, 2, i)) * 0.5f;
      ASSERT_EQ(got[i], expected) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Over, ClientFragments, ::testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace gradrail::worker
