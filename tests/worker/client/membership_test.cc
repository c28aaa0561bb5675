// Workers that join, leave, are refused or are lost, and the errors that name them.
#include "base/clock.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tests/worker/client/cluster.h"
#include "tests/worker/client/raw_worker.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

const Schema kSmall = {{"w", {40}}, {"b", {3}}};

std::vector<float> descended(const std::vector<std::pair<uint32_t, uint64_t>>& updates, size_t elements) {
  std::vector<float> values(elements);
  for (size_t i = 0; i < elements; ++i) {
    values[i] = initial_of(i);
    for (const auto& [worker, step] : updates) values[i] -= gradient_of(worker, step, i);
  }
  return values;
}

absl::Status step(Client& client, uint32_t worker, uint64_t number) {
  fill_gradients(client, worker, number);
  client.exchange();
  return client.wait();
}

TEST(ClientMembership, AsyncTakesAWorkerThatJoinsInTheMiddle) {
  const Watchdog watchdog;
  Cluster cluster({.ps_count = 2, .worker_count = 1});
  const std::unique_ptr<Client> first = join(cluster.options(0), kSmall);
  ASSERT_NE(first, nullptr);
  fill_initial(*first);
  ASSERT_TRUE(first->start().ok());
  ASSERT_TRUE(step(*first, 0, 1).ok());
  ASSERT_TRUE(step(*first, 0, 2).ok());
  // Not even in the cluster specification.
  const std::unique_ptr<Client> late = join(cluster.options(5), kSmall);
  ASSERT_NE(late, nullptr);
  ASSERT_TRUE(late->start().ok());
  EXPECT_EQ(late->global_step(), 2u);
  EXPECT_EQ(flatten(*late), flatten(*first));
  ASSERT_TRUE(step(*late, 5, 1).ok());
  ASSERT_TRUE(step(*first, 0, 3).ok());
  EXPECT_EQ(first->global_step(), 4u);
  EXPECT_EQ(flatten(*first), descended({{0, 1}, {0, 2}, {5, 1}, {0, 3}}, 43));
  EXPECT_EQ(first->statistics().now().staleness_max, 1u);
}

/// The second server had no record of such a worker, and waited for it.
TEST(ClientMembership, AWorkerLostBetweenTwoJoinsIsWaitedForByNoServer) {
  const Watchdog watchdog;
  Cluster cluster({.ps_count = 2, .worker_count = 2});
  ClientOptions options[2] = {cluster.options(0, ModeKind::sync), cluster.options(1, ModeKind::sync)};
  const std::unique_ptr<Client> stays = join(options[0], kSmall);
  ASSERT_NE(stays, nullptr);
  fill_initial(*stays);
  ASSERT_TRUE(stays->start().ok());
  RawWorker lost(options[1], kSmall);
  const absl::Status joined = lost.join();
  ASSERT_TRUE(joined.ok()) << joined;
  lost.vanish();
  ASSERT_TRUE(step(*stays, 0, 1).ok());
  EXPECT_EQ(stays->global_step(), 1u);
  EXPECT_TRUE(stays->leave().ok());
}

/// The heartbeat named the next chief half a second later: steps that it had to save were over.
TEST(ClientMembership, TheNextChiefKnowsItBehindItsStep) {
  const Watchdog watchdog;
  for (const ModeKind mode : {ModeKind::sync, ModeKind::async}) {
    for (const bool is_lost : {true, false}) {
      Cluster cluster({.ps_count = 2, .shards_per_ps = 2, .worker_count = 2});
      const std::unique_ptr<Client> first = join(cluster.options(0, mode), kSmall);
      const std::unique_ptr<Client> next = join(cluster.options(1, mode), kSmall);
      ASSERT_TRUE(first != nullptr && next != nullptr);
      fill_initial(*first);
      ASSERT_TRUE(first->start().ok() && next->start().ok());
      EXPECT_FALSE(next->is_chief());
      const TimePoint ended = Clock::now();
      ASSERT_TRUE((is_lost ? first->give_up("a test") : first->leave()).ok());
      ASSERT_TRUE(step(*next, 1, 1).ok());
      EXPECT_TRUE(next->is_chief() || seconds_since(ended) > 0.4) << "mode " << static_cast<int>(mode);
    }
  }
}

TEST(ClientMembership, AWorkerThatLeftMayComeBack) {
  const Watchdog watchdog;
  for (const ModeKind mode : {ModeKind::async, ModeKind::sync}) {
    Cluster cluster({.shards_per_ps = 2, .worker_count = 2});
    ClientOptions options[2] = {cluster.options(0, mode), cluster.options(1, mode)};
    const std::unique_ptr<Client> stays = join(options[0], kSmall);
    std::unique_ptr<Client> goes = join(options[1], kSmall);
    ASSERT_TRUE(stays != nullptr && goes != nullptr);
    fill_initial(*stays);
    ASSERT_TRUE(stays->start().ok());
    ASSERT_TRUE(goes->start().ok());
    ASSERT_TRUE(goes->leave().ok());
    goes.reset();
    ASSERT_TRUE(step(*stays, 0, 1).ok());
    goes = join(options[1], kSmall);
    ASSERT_NE(goes, nullptr);
    ASSERT_TRUE(goes->start().ok());
    EXPECT_EQ(goes->global_step(), 1u);
    std::thread other([&] { EXPECT_TRUE(step(*goes, 1, 2).ok()); });
    EXPECT_TRUE(step(*stays, 0, 2).ok());
    other.join();
    ASSERT_TRUE(stays->pull().ok());
    const float scale = mode == ModeKind::sync ? 0.5f : 1.0f;
    const std::vector<float> got = flatten(*stays);
    for (size_t i = 0; i < got.size(); ++i) {
      const float expected =
          initial_of(i) - gradient_of(0, 1, i) - scale * (gradient_of(0, 2, i) + gradient_of(1, 2, i));
      ASSERT_EQ(got[i], expected) << i;
    }
  }
}

TEST(ClientMembership, BarrierWaitsForTheLateAndNotForTheGone) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 3});
  std::atomic<int> arrived = 0;
  in_parallel(3, [&](uint32_t task) {
    const std::unique_ptr<Client> client = join(cluster.options(task), kSmall);
    ASSERT_NE(client, nullptr);
    for (int round = 1; round <= 3; ++round) {
      if (task == 1) std::this_thread::sleep_for(50ms);  // late; the others' counts show whether they waited
      ++arrived;
      const absl::Status passed = client->barriers().wait("meet");
      ASSERT_TRUE(passed.ok()) << passed;
      EXPECT_GE(arrived.load(), 3 * round);
      ASSERT_TRUE(client->barriers().wait("look").ok());  // no worker counts the next round before all have looked
    }
    if (task == 2) {
      EXPECT_TRUE(client->leave().ok());
      return;
    }
    EXPECT_TRUE(client->barriers().wait("without the third").ok());
    EXPECT_TRUE(client->barriers().wait_for_live("same").ok());
  });
}

TEST(ClientMembership, BarrierWaitsForWorkersThatHaveNotJoined) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2});
  const std::unique_ptr<Client> early = join(cluster.options(0), kSmall);
  ASSERT_NE(early, nullptr);
  EXPECT_TRUE(early->barriers().wait_for_live("alone").ok());
  std::atomic<bool> joined = false;
  std::thread waiter([&] {
    EXPECT_TRUE(early->barriers().wait("all").ok());
    EXPECT_TRUE(joined.load());
  });
  std::this_thread::sleep_for(100ms);  // no event exists: the client does not report that it waits in a barrier
  joined = true;
  const std::unique_ptr<Client> late = join(cluster.options(1), kSmall);
  EXPECT_TRUE(late != nullptr && late->barriers().wait("all").ok());
  waiter.join();
}

/// A worker that joined and vanished without leaving. Its silence counts after more time than the test has.
TEST(ClientLoss, SyncGoesOnWithoutTheLostWorkerBeforeItIsSilentForTooLong) {
  const Watchdog watchdog;
  for (const ModeKind mode : {ModeKind::sync, ModeKind::ssp}) {
    for (const char* transport : {"shm", "tcp"}) {
      Cluster cluster({.worker_count = 2, .transports = {transport}, .heartbeat_timeout = 600s});
      ClientOptions options[2] = {cluster.options(0, mode), cluster.options(1, mode)};
      std::unique_ptr<Client> client = join(options[0], kSmall);
      ASSERT_NE(client, nullptr);
      fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      RawWorker lost(options[1], kSmall);
      ASSERT_TRUE(lost.join().ok());
      fill_gradients(*client, 0, 1);
      client->exchange();
      std::thread killer([&] { lost.vanish(); });
      const absl::Status waited = client->wait();
      killer.join();
      EXPECT_TRUE(waited.ok()) << waited;
      EXPECT_EQ(flatten(*client), descended({{0, 1}}, 43));
      EXPECT_TRUE(client->leave().ok());
      EXPECT_TRUE(cluster.outcome(0).ok());
    }
  }
}

/// Programs print it.
TEST(ClientLoss, TheReasonOfAnotherWorkerIsOneLine) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2, .min_workers = 2});
  const std::unique_ptr<Client> client = join(cluster.options(0, ModeKind::sync), kSmall);
  const std::unique_ptr<Client> lost = join(cluster.options(1, ModeKind::sync), kSmall);
  ASSERT_TRUE(client != nullptr && lost != nullptr);
  ASSERT_TRUE(client->start().ok());
  ASSERT_TRUE(lost->give_up("its disk\nworker 0: forged \x1b[31m").ok());
  EXPECT_THAT(std::string(message_of(step(*client, 1, 1))), HasSubstr("its disk\\x0aworker 0: forged \\x1b[31m"));
}

TEST(ClientLoss, WithMinWorkersTheLostWorkerIsNamedBeforeItIsSilentForTooLong) {
  const Watchdog watchdog;
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster({.worker_count = 2, .transports = {transport}, .heartbeat_timeout = 600s, .min_workers = 2});
    ClientOptions options[2] = {cluster.options(0, ModeKind::sync), cluster.options(1, ModeKind::sync)};
    std::unique_ptr<Client> client = join(options[0], kSmall);
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(client->start().ok());
    RawWorker lost(options[1], kSmall);
    ASSERT_TRUE(lost.join().ok());
    client->exchange();
    std::thread killer([&] { lost.vanish(); });
    const absl::Status waited = client->wait();
    killer.join();
    EXPECT_TRUE(absl::IsAborted(waited)) << waited;
    EXPECT_THAT(std::string(message_of(waited)), HasSubstr("worker 1 (raw) was lost"));
    // The next calls fail at once with the same status. They do not hang or stop the process.
    EXPECT_EQ(client->pull(), waited);
    client->exchange();
    EXPECT_EQ(client->wait(), waited);
    EXPECT_FALSE(client->barriers().wait("any").ok());
    client.reset();
    EXPECT_TRUE(absl::IsAborted(cluster.outcome(0)));
  }
}

TEST(ClientLoss, SilentWorkerIsDeclaredLost) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1, .heartbeat_timeout = 1s, .return_limit = 300ms});
  // Joins and never beats: the control plane alone notices.
  ClientOptions options = cluster.options(0);
  {
    RawWorker mute(options, kSmall);
    ASSERT_TRUE(mute.join().ok());
  }
  const absl::Status outcome = cluster.outcome(0);
  EXPECT_TRUE(absl::IsAborted(outcome)) << outcome;
  EXPECT_THAT(std::string(message_of(outcome)), HasSubstr(", and no worker remains"));
}

TEST(ClientLoss, ServerThatGoesIsUnavailable) {
  const Watchdog watchdog;
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster({.ps_count = 2, .worker_count = 2, .transports = {transport}});
    ClientOptions options = cluster.options(0);
    options.mode.kind = ModeKind::sync;  // waits for worker 1, which never joins
    const std::unique_ptr<Client> client = join(options, kSmall);
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(client->start().ok());
    client->exchange();
    std::thread stopper([&] { cluster.stop(1); });
    const absl::Status waited = client->wait();
    stopper.join();
    EXPECT_TRUE(absl::IsUnavailable(waited)) << waited;
    EXPECT_THAT(std::string(message_of(waited)), HasSubstr(cluster.spec().ps[1]));
    EXPECT_THAT(std::string(message_of(waited)), HasSubstr("was lost"));
  }
}

TEST(ClientLoss, ServerThatGoesEndsABarrier) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2});
  const std::unique_ptr<Client> client = join(cluster.options(0), kSmall);
  ASSERT_NE(client, nullptr);
  std::thread stopper([&] { cluster.stop(0); });
  const absl::Status waited = client->barriers().wait("never");
  stopper.join();
  EXPECT_TRUE(absl::IsUnavailable(waited)) << waited;
}

/// Joins that must fail, with the reason.
class ClientRefusal : public ::testing::Test {
 protected:
  ClientRefusal() : cluster_({.worker_count = 2}), first_(join(cluster_.options(0), kSmall)) {}

  void expect(ClientOptions options, const Schema& schema, absl::StatusCode code, const std::string& words) {
    const Watchdog watchdog;
    options.recovery.join_timeout = 500ms;
    const absl::StatusOr<std::unique_ptr<Client>> refused = Client::join(options, schema);
    EXPECT_EQ(refused.status().code(), code) << refused.status();
    EXPECT_THAT(std::string(message_of(refused.status())), HasSubstr(words));
    // The first worker does not notice.
    EXPECT_TRUE(first_->start().ok());
    EXPECT_TRUE(step(*first_, 0, 1).ok());
  }

  Cluster cluster_;
  std::unique_ptr<Client> first_;
};

TEST_F(ClientRefusal, OtherShape) {
  expect(cluster_.options(1), {{"w", {40}}, {"b", {4}}}, absl::StatusCode::kFailedPrecondition,
         "schema mismatch: tensor 1: 'b' [3] in the run, 'b' [4] at worker 1: start all workers with the same model "
         "and fragments");
}

TEST_F(ClientRefusal, OtherLearningRate) {
  ClientOptions options = cluster_.options(1);
  options.optimizer.learning_rate = 0.5f;
  expect(options, kSmall, absl::StatusCode::kFailedPrecondition,
         "learning_rate 1 in the run, 0.5 at worker 1: start all workers with the same options");
}

TEST_F(ClientRefusal, OtherMode) {
  ClientOptions options = cluster_.options(1);
  options.mode.kind = ModeKind::sync;
  expect(options, kSmall, absl::StatusCode::kFailedPrecondition, "mode async in the run, sync at worker 1");
}

/// It would not fit into the other mode either: what it did wrong is the mode.
TEST_F(ClientRefusal, OtherModeAndAnIndexThatModeHasNoPlaceFor) {
  ClientOptions options = cluster_.options(5);
  options.mode.kind = ModeKind::sync;
  expect(options, kSmall, absl::StatusCode::kFailedPrecondition, "mode async in the run, sync at worker 5");
}

TEST_F(ClientRefusal, OtherListOfServers) {
  Cluster other({.worker_count = 2});
  ClientOptions options = cluster_.options(1);
  options.cluster.ps.insert(options.cluster.ps.begin(), other.spec().ps[0]);
  expect(options, kSmall, absl::StatusCode::kFailedPrecondition, "are the ps_hosts lists the same?");
}

TEST_F(ClientRefusal, SameTaskTwice) {
  expect(cluster_.options(0), kSmall, absl::StatusCode::kAlreadyExists, "do two processes have the same task_index?");
}

TEST_F(ClientRefusal, TaskIndexBeyondAllBounds) {
  expect(cluster_.options(4'000'000'000), kSmall, absl::StatusCode::kInvalidArgument, "worker 4000000000");
}

TEST_F(ClientRefusal, ServerThatIsNotThere) {
  ClientOptions options = cluster_.options(1);
  options.cluster.ps[0] = "127.0.0.1:1";
  expect(options, kSmall, absl::StatusCode::kDeadlineExceeded, "parameter server 0 (127.0.0.1:1) did not come up");
}

TEST_F(ClientRefusal, SchemaThatIsNone) {
  expect(cluster_.options(1), {{"w", {0}}}, absl::StatusCode::kInvalidArgument, "'w'");
  expect(cluster_.options(1), {}, absl::StatusCode::kInvalidArgument, "");
}

TEST(ClientTransports, FallbackKeepsTheReason) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1, .transports = {"tcp"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"shm", "tcp"};
  const std::unique_ptr<Client> client = join(options, kSmall);
  ASSERT_NE(client, nullptr);
  const std::vector<std::string> paths = client->statistics().now().paths;
  ASSERT_EQ(paths.size(), 1u);
  EXPECT_THAT(paths[0], HasSubstr("tcp (shm refused: the other end does not offer it)"));
  EXPECT_TRUE(client->start().ok());
}

TEST(ClientTransports, NoFallbackMakesTheFirstRefusalFatal) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1, .transports = {"tcp"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"shm", "tcp"};
  options.transport.fallback = false;
  const absl::Status refused = Client::join(options, kSmall).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("transport shm refused: the other end does not offer it"));
  options.transport.order = {"tcp"};
  EXPECT_NE(join(options, kSmall), nullptr);
}

/// The control plane took it, no path did: it is lost, and has not left.
TEST(ClientTransports, WorkerWithoutAPathThatIsNeededAbortsTheRunByName) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 2, .transports = {"tcp"}, .min_workers = 2});
  ClientOptions options[2] = {cluster.options(0, ModeKind::sync), cluster.options(1, ModeKind::sync)};
  options[1].transport.order = {"shm"};
  const std::unique_ptr<Client> honest = join(options[0], kSmall);
  ASSERT_NE(honest, nullptr);
  ASSERT_TRUE(honest->start().ok());
  honest->exchange();
  EXPECT_FALSE(Client::join(options[1], kSmall).ok());
  const absl::Status waited = honest->wait();
  EXPECT_TRUE(absl::IsAborted(waited)) << waited;
  EXPECT_THAT(std::string(message_of(waited)), HasSubstr("worker 1"));
  EXPECT_THAT(std::string(message_of(waited)), HasSubstr("no transport can be used"));
}

TEST(ClientTransports, NoneInCommon) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1, .transports = {"tcp"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"shm"};
  const absl::Status refused = Client::join(options, kSmall).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("no transport can be used"));
}

}  // namespace
}  // namespace gradrail::worker
