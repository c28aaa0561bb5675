// A ps with a new address, and the hook that returns the new address.
#include "absl/status/status.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

/// Two clusters of equal shape: the second one stands for ps tasks that start again elsewhere.
struct Restart {
  explicit Restart(const ClusterShape& shape) : first(shape), second(shape) {}

  /// The client asks for the addresses of the present ps tasks.
  ClientOptions options(uint32_t task) {
    ClientOptions options = first.options(task);
    options.cluster.ps.assign(options.cluster.ps.size(), "");
    options.recovery.rejoin_timeout = 60s;
    options.recovery.ps_address = [this](uint32_t ps_index) -> absl::StatusOr<std::string> {
      return here->spec().ps[ps_index];
    };
    return options;
  }
  void restart() {
    first.stop(0);
    here = &second;
  }

  Cluster first, second;
  const Cluster* here = &first;  // the hook is asked in our thread
};

absl::Status take_step(Client& client, uint32_t worker, uint64_t step) {
  fill_gradients(client, worker, step);
  client.exchange();
  return client.wait();
}

TEST(ClientRejoin, AServerThatComesBackElsewhereIsFound) {
  Watchdog watchdog;
  Restart run({.worker_count = 1});
  int asked = 0;
  ClientOptions options = run.options(0);
  options.recovery.ps_address = [&](uint32_t ps_index) -> absl::StatusOr<std::string> {
    if (++asked % 3 != 0) return absl::NotFoundError("between two addresses");
    return run.here->spec().ps[ps_index];
  };
  const auto client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  const auto step = [&] { return take_step(*client, 0, client->position()); };
  ASSERT_TRUE(step().ok());
  run.restart();
  const absl::Status back = step();
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(client->statistics().now().rejoins, 1u);
  ASSERT_TRUE(step().ok());
  EXPECT_TRUE(client->leave().ok());
  EXPECT_TRUE(run.second.outcome(0).ok()) << "a worker has joined and left there";
}

/// They joined again, or failed for a lost ps. After such a join the program exchanged the fragment that it had chosen
/// before. The other workers waited for it in another fragment.
TEST(ClientRejoin, RatesAndWeightsAreSetWithoutALookAtTheRun) {
  Watchdog watchdog;
  Restart run({.worker_count = 1});
  const auto client = join(run.options(0), odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  ASSERT_TRUE(take_step(*client, 0, 0).ok());
  run.restart();
  for (int call = 0; call < 5; ++call) {
    ASSERT_TRUE(client->set_learning_rate(0.25f).ok());
    ASSERT_TRUE(client->set_weight(2.0f).ok());
  }
  EXPECT_EQ(client->statistics().now().rejoins, 0u);
  EXPECT_TRUE(take_step(*client, 0, 1).ok());
  EXPECT_EQ(client->statistics().now().rejoins, 1u);
  EXPECT_TRUE(client->leave().ok());
}

/// The handshake of the mapped memory wrote the last element of each shard's range into the parameters of the chief,
/// which were offered afterwards. The restarted ps has no checkpoint.
TEST(ClientRejoin, TheChiefOffersTheParametersThatItHas) {
  Watchdog watchdog;
  for (const auto& [transport, returns] :
       {std::pair("shm", ReturnFormat::fp32), std::pair("tcp", ReturnFormat::fp32),
        std::pair("shm", ReturnFormat::delta), std::pair("tcp", ReturnFormat::delta)}) {
    Restart run({.shards_per_ps = 3, .worker_count = 1});
    ClientOptions options = run.options(0);
    options.transport.order = {transport};
    options.compression.returns = returns;
    const auto client = join(options, odd_schema());
    ASSERT_NE(client, nullptr);
    fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    const auto step = [&] { return take_step(*client, 0, client->position()); };
    ASSERT_TRUE(step().ok() && step().ok());
    std::vector<std::vector<float>> reached;
    for (size_t i = 0; i < odd_schema().size(); ++i) {
      reached.emplace_back(client->parameters(i).begin(), client->parameters(i).end());
    }
    // The offer leaves from the memory of gradients: the program adds to what is there.
    fill_gradients(*client, 0, 7);
    run.restart();
    ASSERT_TRUE(client->wait().ok());
    while (client->statistics().now().rejoins == 0) ASSERT_TRUE(client->pull().ok());
    for (size_t i = 0, element = 0; i < reached.size(); ++i) {
      for (const float gradient : client->gradients(i)) ASSERT_EQ(gradient, gradient_of(0, 7, element++));
      EXPECT_THAT(client->parameters(i), ::testing::ElementsAreArray(reached[i])) << transport << ", tensor " << i;
    }
    EXPECT_TRUE(client->leave().ok());
  }
}

/// It took steps that the others had made since their return for steps from before the loss, and left out own ones.
TEST(ClientRejoin, AWorkerThatReturnsLastRepeatsItsLostSteps) {
  Watchdog watchdog;
  const TemporaryFolder folder;
  Restart run({.worker_count = 2, .checkpoint_dir = folder.path()});
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t task = 0; task < 2; ++task) {
    clients.push_back(join(run.options(task), odd_schema()));
    ASSERT_NE(clients[task], nullptr);
    if (task == 0) fill_initial(*clients[task]);
    ASSERT_TRUE(clients[task]->start().ok());
  }
  const auto step = [&](uint32_t task) { return take_step(*clients[task], task, clients[task]->position() + 1); };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(step(0).ok() && step(1).ok());
  ASSERT_TRUE(clients[0]->checkpoints().save().ok());
  ASSERT_TRUE(step(0).ok() && step(1).ok());
  run.restart();
  while (clients[0]->position() != 6) ASSERT_TRUE(step(0).ok());
  ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(clients[1]->position(), 3u) << "as many of its steps are in the checkpoint";
  while (clients[1]->position() != 6) ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(clients[1]->global_step(), 12u);
}

/// Such a worker ended with the loss, because it had nothing to return to.
TEST(ClientRejoin, AServerThatIsLostBeforeTheFirstStepIsJoinedAgain) {
  Watchdog watchdog;
  Restart run({.worker_count = 1});
  const auto client = join(run.options(0), odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  run.restart();
  const absl::Status started = client->start();
  ASSERT_TRUE(started.ok()) << started;
  EXPECT_TRUE(take_step(*client, 0, client->position()).ok());
  EXPECT_EQ(client->position(), 1u);
  EXPECT_TRUE(client->leave().ok());
}

/// The first of two servers goes while the worker describes the second one.
TEST(ClientRejoin, AServerThatIsLostDuringTheFirstJoinIsJoinedAgain) {
  Watchdog watchdog;
  Restart run({.ps_count = 2, .worker_count = 1});
  ClientOptions options = run.options(0);
  options.recovery.ps_address = [&](uint32_t ps_index) -> absl::StatusOr<std::string> {
    const std::string address = run.here->spec().ps[ps_index];
    if (ps_index == 1 && run.here == &run.first) run.restart();
    return address;
  };
  const auto client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  EXPECT_TRUE(client->start().ok());
  EXPECT_TRUE(client->leave().ok());
}

TEST(ClientRejoin, TheReasonOfAMissingAddressIsReported) {
  Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  ClientOptions options = cluster.options(0);
  options.recovery.join_timeout = 300ms;
  options.recovery.ps_address = [](uint32_t ps_index) -> absl::StatusOr<std::string> {
    return absl::NotFoundError(fmt::format("ps {} has moved without a word", ps_index));
  };
  const auto client = Client::join(options, odd_schema());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(message_of(client.status())), HasSubstr("ps 0 has moved without a word"));
}

TEST(ClientRejoin, AnAddressBeyondThisHostIsRefusedAsOneOfTheCluster) {
  Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  ClientOptions options = cluster.options(0);
  options.recovery.ps_address = [](uint32_t) -> absl::StatusOr<std::string> { return "192.0.2.1:2222"; };
  const auto client = Client::join(options, odd_schema());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(client.status())), HasSubstr("192.0.2.1:2222 is reachable from other hosts"));
}

}  // namespace
}  // namespace gradrail::worker
