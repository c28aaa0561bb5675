// A ps that is lost and has a backup: workers continue there, every gradient counts once, and nothing seen is lost.
#include <grpcpp/grpcpp.h>

#include <atomic>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/admission/channel.h"
#include "ps/protocol/control_call.h"
#include "ps/protocol/control_status.h"
#include "ps/protocol/training.h"
#include "tests/worker/client/cluster.h"
#include "worker/client/exchange.h"
#include "worker/client/session/session.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSteps = 40;

struct Plan {
  const char* transport = "tcp";
  ModeKind mode = ModeKind::sync;
  uint32_t bound = 0;
  bool drops_late = false;
  OptimizerConfig optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 1.0f};
  PushFormat push = PushFormat::fp32;
  ReturnFormat returns = ReturnFormat::fp32;
  float scale = 1.0f;  ///< of the gradients
};

bool is_level(Cluster& cluster, uint32_t index) {
  const absl::StatusOr<ps::proto::StatsReply> stats = cluster.server(index).stats();
  return stats.ok() && stats->backup() == "level";
}

/// Two workers; ps 0 goes when worker 0 is about to push step `lost_at` (0: it stays).
class BackupRun {
 public:
  BackupRun(const Plan& run, uint32_t ps_count, uint64_t lost_at)
      : cluster_({.ps_count = ps_count, .shards_per_ps = 2, .transports = {run.transport}, .backups = true}) {
    in_parallel(2, [&](uint32_t task) { work(run, task, lost_at); });
  }

  std::vector<float> parameters[2];
  std::vector<float> after_steps[2];  ///< before the pull, which returns whole buckets
  uint64_t global_step[2] = {};
  uint64_t takeovers[2] = {};
  std::atomic<uint64_t> dropped = 0;

 private:
  void work(const Plan& run, uint32_t task, uint64_t lost_at) {
    ClientOptions options = cluster_.options(task);
    options.mode.kind = run.mode;
    options.mode.bound = run.bound;
    options.mode.drops_late = run.drops_late;
    options.optimizer = run.optimizer;
    set_push(options, run.push);
    options.compression.returns = run.returns;
    const std::unique_ptr<Client> client = join(options, odd_schema());
    ASSERT_NE(client, nullptr);
    fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    for (uint64_t step = 1; step <= kSteps; ++step) {
      std::thread loss;
      if (task == 0 && step == lost_at) {
        ASSERT_TRUE(eventually([&] { return is_level(cluster_, 0); }));
        loss = std::thread([this] { cluster_.stop(0); });
      }
      fill_gradients(*client, task, step);
      scale_gradients(*client, run.scale);
      client->exchange();
      const absl::Status waited = client->wait();
      if (loss.joinable()) loss.join();
      ASSERT_TRUE(waited.ok()) << waited;
    }
    after_steps[task] = flatten(*client);
    ASSERT_TRUE(client->finish_steps().ok());
    const absl::Status met = client->barriers().wait("the end");
    ASSERT_TRUE(met.ok()) << met;
    ASSERT_TRUE(client->pull().ok());
    parameters[task] = flatten(*client);
    global_step[task] = client->global_step();
    takeovers[task] = client->statistics().now().takeovers;
    dropped += client->statistics().now().dropped;
    const absl::Status left = client->leave();
    EXPECT_TRUE(left.ok()) << left;
  }

  Cluster cluster_;
};

class ClientBackup : public ::testing::TestWithParam<const char*> {
 protected:
  const Watchdog watchdog_;
};

TEST_P(ClientBackup, SyncEndsInTheBitsOfAnUndisturbedRun) {
  using Push = PushFormat;
  using Return = ReturnFormat;
  std::vector<std::pair<PushFormat, Return>> formats = {{Push::fp32, Return::fp32}, {Push::int4, Return::delta}};
  if (GetParam() == std::string_view("shm")) formats.push_back({{Push::topk, 100}, Return::fp32});
  for (const auto& [push, returns] : formats) {
    const Plan run{.transport = GetParam(),
                   .mode = ModeKind::sync,
                   .optimizer = {.kind = OptimizerKind::adam, .learning_rate = 0.01f},
                   .push = push,
                   .returns = returns,
                   .scale = 0.3f};
    const BackupRun undisturbed(run, 2, 0), disturbed(run, 2, 17);
    EXPECT_EQ(disturbed.takeovers[0], 1u);
    EXPECT_EQ(disturbed.takeovers[1], 1u);
    EXPECT_EQ(disturbed.global_step[0], kSteps);
    EXPECT_EQ(disturbed.parameters[0], undisturbed.parameters[0]);
    EXPECT_EQ(disturbed.parameters[1], undisturbed.parameters[0]);
    for (const auto& after_steps : disturbed.after_steps) EXPECT_EQ(after_steps, undisturbed.parameters[0]);
  }
}

void expect_each_gradient_once(const BackupRun& run) {
  EXPECT_EQ(run.takeovers[0], 1u);
  EXPECT_EQ(run.global_step[0], 2 * kSteps);
  for (size_t i = 0; i < run.parameters[0].size(); ++i) {
    float expected = initial_of(i);
    for (const uint32_t worker : {0, 1}) {
      for (uint64_t step = 1; step <= kSteps; ++step) expected -= gradient_of(worker, step, i);
    }
    ASSERT_EQ(run.parameters[0][i], expected) << i;
    ASSERT_EQ(run.parameters[1][i], expected) << i;
  }
}

TEST_P(ClientBackup, AsyncAppliesEachGradientOnce) {
  expect_each_gradient_once(BackupRun({.transport = GetParam(), .mode = ModeKind::async}, 1, 11));
}

TEST_P(ClientBackup, SspAppliesEachGradientOnce) {
  expect_each_gradient_once(BackupRun({.transport = GetParam(), .mode = ModeKind::ssp, .bound = 2}, 1, 23));
}

TEST_P(ClientBackup, QuorumContinuesAndEndsAlike) {
  const BackupRun run({.transport = GetParam(), .mode = ModeKind::quorum, .bound = 1, .drops_late = true}, 1, 13);
  EXPECT_EQ(run.takeovers[0], 1u);
  EXPECT_EQ(run.parameters[0], run.parameters[1]);
  EXPECT_GE(run.global_step[0], kSteps);
}

INSTANTIATE_TEST_SUITE_P(Built, ClientBackup, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

std::unique_ptr<ps::proto::Control::Stub> stub_of(const std::string& address) {
  const auto channel = ps::open_channel(address, grpc::InsecureChannelCredentials(), "", {}, 20s);
  EXPECT_TRUE(channel.ok()) << channel.status();
  return ps::proto::Control::NewStub(*channel);
}

/// The group of parameter servers that workers join. It has one ps.
uint64_t group_of(const Cluster& cluster) {
  ps::proto::DescribeRequest request;
  request.set_protocol_version(ps::kProtocolVersion);
  ps::proto::DescribeReply reply;
  const auto stub = stub_of(cluster.spec().ps[0]);
  EXPECT_TRUE(ps::call(*stub, &ps::proto::Control::Stub::Describe, 20s, request, reply).ok());
  return ps::with_process(0, reply.process());
}

absl::Status send_join(const std::string& address, const ps::proto::JoinRequest& request) {
  ps::proto::JoinReply reply;
  return ps::from_grpc(ps::call(*stub_of(address), &ps::proto::Control::Stub::Join, 20s, request, reply));
}

/// One worker that has made some steps, one ps and its backup.
class Pair : public ::testing::Test {
 protected:
  Pair() : cluster_({.worker_count = 1, .backups = true}), client_(join(cluster_.options(0), odd_schema())) {
    fill_initial(*client_);
    EXPECT_TRUE(client_->start().ok());
    steps(5);
    EXPECT_TRUE(eventually([&] { return is_level(cluster_, 0); }));
    group_ = group_of(cluster_);
  }
  void steps(uint64_t count) {
    for (uint64_t end = step_ + count; step_ < end;) {
      fill_gradients(*client_, 0, ++step_);
      client_->exchange();
      const absl::Status waited = client_->wait();
      ASSERT_TRUE(waited.ok()) << waited;
    }
  }
  /// Asks the backup to take over, as a worker of `group` that has seen `version` of bucket 0 and has made `steps`.
  /// Returns the answer.
  absl::Status request_takeover(uint64_t version, uint64_t group, uint64_t steps = 0) {
    ps::proto::JoinRequest request;
    request.set_protocol_version(ps::kProtocolVersion);
    request.set_group(group);
    request.mutable_take_over()->add_versions(version);
    request.mutable_take_over()->add_steps(steps);
    return send_join(cluster_.options(0).recovery.backups[0], request);
  }

  const Watchdog watchdog_;
  Cluster cluster_;
  std::unique_ptr<Client> client_;
  uint64_t step_ = 0;
  uint64_t group_ = 0;
};

TEST_F(Pair, TheBackupHasTheSameBits) {
  steps(20);
  const MemorySpan here = cluster_.server(0).parameters_memory()[0];
  const MemorySpan there = cluster_.server(1).parameters_memory()[0];
  ASSERT_EQ(here.bytes, there.bytes);
  EXPECT_EQ(std::vector<std::byte>(here.data, here.data + here.bytes),
            std::vector<std::byte>(there.data, there.data + there.bytes))
      << "each answer waits for it";
}

TEST_F(Pair, TheBackupRefusesWhileThePrimaryRuns) {
  const absl::Status refused = request_takeover(1, group_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its primary is connected"));
  steps(3);
}

TEST_F(Pair, ABackupThatMissesWhatAWorkerHasSeenRefuses) {
  cluster_.stop(0);
  const absl::Status refused = request_takeover(step_ + 1, group_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its primary continued without it"));
  steps(3);  // this worker has seen no more than there is
  EXPECT_EQ(client_->statistics().now().takeovers, 1u);
}

/// The network was split. The workers of the backup have made more updates than this one and the primary.
TEST_F(Pair, ABackupThatMissesStepsOfAWorkerRefusesAlthoughItsVersionIsNewer) {
  cluster_.stop(0);
  const absl::Status refused = request_takeover(step_, group_, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("it has 0 steps of worker 0 in bucket 0, and the worker has made 1: its primary continued"));
  steps(3);
  EXPECT_EQ(client_->statistics().now().takeovers, 1u);
}

TEST_F(Pair, ABackupWithTheStateOfAnEarlierGroupRefuses) {
  cluster_.stop(0);
  const absl::Status refused = request_takeover(step_, group_ + 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the state of an earlier group"));
  steps(3);  // the worker of its own group is admitted
  EXPECT_EQ(client_->statistics().now().takeovers, 1u);
}

TEST_F(Pair, WithoutTheBackupTheRunGoesOn) {
  cluster_.stop(1);
  steps(10);
  EXPECT_TRUE(eventually([&] { return cluster_.server(0).stats()->backup() == "not there"; }));
  steps(3);
  EXPECT_EQ(client_->global_step(), 18u);
}

TEST_F(Pair, AWorkerThatComesLaterFindsTheBackup) {
  cluster_.stop(0);
  steps(2);
  ClientOptions options = cluster_.options(1);
  options.recovery.join_timeout = 60s;
  const std::unique_ptr<Client> late = join(options, odd_schema());
  ASSERT_NE(late, nullptr);
  ASSERT_TRUE(late->start().ok());
  EXPECT_EQ(late->global_step(), 7u);
  fill_gradients(*late, 1, 1);
  late->exchange();
  ASSERT_TRUE(late->wait().ok());
  steps(1);
  EXPECT_EQ(client_->global_step(), 9u);
}

TEST_F(Pair, TheBackupEndsWithTheRun) {
  ASSERT_TRUE(client_->leave().ok());
  EXPECT_TRUE(cluster_.outcome(0).ok());
  EXPECT_TRUE(cluster_.outcome(1).ok());
}

TEST(EmptyPair, ABackupServesTheFirstWorkersIfItsPrimaryIsLost) {
  const Watchdog watchdog;
  Cluster cluster({.heartbeat_timeout = 2s, .backups = true});
  ASSERT_TRUE(eventually([&] { return cluster.server(0).stats()->backup() == "not level yet"; }));
  cluster.stop(0);
  in_parallel(2, [&](uint32_t task) {
    ClientOptions options = cluster.options(task, ModeKind::sync);
    options.recovery.join_timeout = 60s;
    const std::unique_ptr<Client> client = join(options, odd_schema());
    ASSERT_NE(client, nullptr);
    fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    for (uint64_t step = 1; step <= 3; ++step) {
      fill_gradients(*client, task, step);
      client->exchange();
      ASSERT_TRUE(client->wait().ok());
    }
    EXPECT_EQ(client->global_step(), 3u);
    ASSERT_TRUE(client->leave().ok());
  });
  EXPECT_TRUE(cluster.outcome(1).ok());
}

/// Worker 1 has joined the group of these tasks from an earlier one, and the chief may have finished before. The worker
/// that asks for the takeover does not know that.
TEST(ContinuedRun, ABackupAwaitsMissingWorkersNoLongerThanItsPrimary) {
  const Watchdog watchdog;
  Cluster cluster({.return_limit = 1s, .backups = true});
  const ClientOptions options = cluster.options(1);
  ps::proto::JoinRequest request;
  request.set_protocol_version(ps::kProtocolVersion);
  request.mutable_member()->set_task_index(1);
  request.mutable_member()->set_incarnation(7);
  ps::to_proto(odd_schema(), request);
  *request.mutable_training() = ps::to_proto({.mode = {.kind = options.mode.kind, .worker_count = 2},
                                              .optimizer = options.optimizer,
                                              .bucket_bytes = options.bucket_bytes});
  request.set_total_shards(1);
  request.set_group(group_of(cluster));
  request.set_left_group(request.group() + 1);
  // It asks its backup first whether that has taken over.
  ASSERT_TRUE(eventually([&] { return send_join(options.cluster.ps[0], request).ok(); }));
  ASSERT_TRUE(eventually([&] { return is_level(cluster, 0); }));
  EXPECT_EQ(cluster.server(0).stats()->chief(), 0u) << "it may still come";
  cluster.stop(0);
  request.set_left_group(request.group());
  request.set_newcomer(true);
  request.mutable_take_over();
  ASSERT_TRUE(eventually([&] { return send_join(options.recovery.backups[0], request).ok(); }));
  EXPECT_TRUE(eventually([&] { return cluster.server(1).stats()->chief() == 1; }, 8s));
}

/// The parts of a client up to its first exchange, which the test makes bucket by bucket.
struct OpeningWorker {
  explicit OpeningWorker(ClientOptions given) : options(std::move(given)) {}
  ~OpeningWorker() { session.stop_heartbeats(); }

  absl::Status join() {
    const TimePoint deadline = Clock::now() + 60s;
    GRADRAIL_RETURN_IF_ERROR(session.open());
    GRADRAIL_RETURN_IF_ERROR(memory.allocate(options.placement.place_memory, options.placement.device));
    GRADRAIL_RETURN_IF_ERROR(session.describe(deadline));
    GRADRAIL_RETURN_IF_ERROR(exchange.cut_model());
    GRADRAIL_ASSIGN_OR_RETURN(const std::vector<uint64_t> first_steps, session.join(deadline, false));
    exchange.set_first_steps(first_steps);
    return paths.connect_all(deadline);
  }
  bool poll_until_outstanding(size_t count) {
    return eventually([&] {
      exchange.post_backlog();
      paths.poll_events();
      return exchange.outstanding(0) == count;
    });
  }

  ClientOptions options;
  Identity identity{0};
  ModelMemory memory{Schema{{"first", {1024}}, {"second", {1024}}}, PushFormat::fp32};
  Telemetry telemetry{options};
  RunFailure failure{true, [] {}};
  PathManager paths{options, identity, memory, failure, telemetry, exchange, {}};
  Exchange exchange{options, identity, memory, failure, telemetry, paths};
  Session session{options, identity, memory, failure, telemetry, paths, nullptr};
};

TEST(OpeningRun, ABackupReceivesTheInitialValuesThatItsPrimaryHasAnswered) {
  const Watchdog watchdog;
  Cluster cluster({.worker_count = 1});
  OpeningWorker chief(cluster.options(0));
  const absl::Status joined = chief.join();
  ASSERT_TRUE(joined.ok()) << joined;
  chief.exchange.begin(0, ps::ArrivalKind::initialise, Clock::now());
  chief.exchange.ready(0);
  ASSERT_TRUE(chief.poll_until_outstanding(1)) << "a bucket for each tensor";
  chief.exchange.on_path_lost(*chief.paths.links()[0]);
  EXPECT_EQ(chief.exchange.outstanding(0), 2u) << "the task behind the new path may lack the answered bucket";
  ASSERT_TRUE(chief.poll_until_outstanding(1)) << "it was offered again";
  chief.exchange.push_all(0);
  ASSERT_TRUE(chief.poll_until_outstanding(0));
  EXPECT_TRUE(chief.exchange.finish(0).ok());
}

}  // namespace
}  // namespace gradrail::worker
