// Runs through aggregators in one process: the bits of a flat run, less traffic into the shards, losses.
#include "worker/aggregator/aggregator.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

using aggregator::Aggregator;
using ps::PushFormat;

constexpr uint32_t kWorkers = 4;
constexpr uint32_t kGroup = 2;
constexpr uint64_t kSteps = 12;

std::unique_ptr<Aggregator> start_aggregator(const std::string& transport) {
  auto started = Aggregator::start({.listen_address = "127.0.0.1:0", .transports = {transport}});
  EXPECT_TRUE(started.ok()) << started.status();
  return started.ok() ? *std::move(started) : nullptr;
}

struct Traffic {
  uint64_t from_aggregators = 0;
  uint64_t from_workers = 0;
  uint64_t out = 0;
};

Traffic traffic_of(ps::Server& server) {
  Traffic traffic;
  const absl::StatusOr<ps::proto::StatsReply> stats = server.stats();
  EXPECT_TRUE(stats.ok());
  for (const auto& path : stats->paths()) {
    const bool is_group = path.path().find("from aggregator") != std::string::npos;
    (is_group ? traffic.from_aggregators : traffic.from_workers) += path.bytes_in();
    traffic.out += path.bytes_out();
  }
  return traffic;
}

/// A sync run of four workers in groups of two. Without a hook nothing happens between the steps.
struct GroupedRun {
  std::string transport = "tcp";
  PushFormat push = PushFormat::fp32;
  ps::ReturnFormat returns = ps::ReturnFormat::fp32;
  std::vector<std::string> aggregators = {};
  uint64_t slot_bytes = 0;
  bool checksums = false;
  float scale = 1.0f / 3.0f;  ///< of the gradients
  std::function<void(uint32_t worker, uint64_t step)> before_step = [](uint32_t, uint64_t) {};

  // Results.
  std::vector<std::vector<float>> parameters = std::vector<std::vector<float>>(kWorkers);
  std::vector<std::string> paths = std::vector<std::string>(kWorkers);
  Traffic traffic;
  uint64_t returned = 0;  ///< bytes to worker 0

  void run() {
    Cluster cluster(
        {.shards_per_ps = 2, .worker_count = kWorkers, .transports = {transport}, .slot_bytes = slot_bytes});
    in_parallel(kWorkers, [&](uint32_t worker) {
      ClientOptions options = cluster.options(worker, ps::ModeKind::sync);
      set_push(options, push);
      options.returns = returns;
      options.bucket_bytes = std::max(options.bucket_bytes, 4096u);
      if (push.kind == PushFormat::topk) options.bucket_bytes = 16384;
      options.aggregators = aggregators;
      options.sum_group = kGroup;
      options.checksums = checksums;
      const std::unique_ptr<Client> client = join(options, odd_schema());
      ASSERT_NE(client, nullptr);
      fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      for (uint64_t step = 1; step <= kSteps; ++step) {
        before_step(worker, step);
        fill_gradients(*client, worker, step);
        scale_gradients(*client, scale);
        client->exchange();
        const absl::Status waited = client->wait();
        ASSERT_TRUE(waited.ok()) << waited;
      }
      parameters[worker] = flatten(*client);
      if (worker == 0) returned = client->stats().bytes_returned;
      paths[worker] = fmt::format("{}", client->stats().paths.front());
      ASSERT_TRUE(client->barrier("done").ok());
      if (worker == 0) traffic = traffic_of(cluster.server(0));
      ASSERT_TRUE(client->finish_steps().ok());
      ASSERT_TRUE(client->leave().ok());
    });
  }
};

class Aggregators : public testing::TestWithParam<std::tuple<const char*, PushFormat>> {
 protected:
  std::string transport() const { return std::get<0>(GetParam()); }
  PushFormat push() const { return std::get<1>(GetParam()); }
  const Watchdog watchdog_;
};

std::string address(const Aggregator& aggregator) { return fmt::format("127.0.0.1:{}", aggregator.port()); }

TEST_P(Aggregators, ATreeHasTheBitsOfAFlatRunAndLessTraffic) {
  GroupedRun flat{.transport = transport(), .push = push()};
  flat.run();
  const auto first = start_aggregator(transport());
  const auto second = start_aggregator(transport());
  GroupedRun tree{.transport = transport(), .push = push(), .aggregators = {address(*first), address(*second)}};
  tree.run();
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    EXPECT_EQ(tree.parameters[worker], flat.parameters[0]) << worker;
    const Aggregator& home = worker < kGroup ? *first : *second;
    EXPECT_THAT(tree.paths[worker], testing::HasSubstr("through aggregator " + address(home)));
  }
  EXPECT_EQ(tree.traffic.from_workers, 0u);
  EXPECT_EQ(flat.traffic.from_aggregators, 0u);
  const double fan_in =
      static_cast<double>(flat.traffic.from_workers) / static_cast<double>(tree.traffic.from_aggregators);
  const double of_one = push() == PushFormat::int8 ? 2.0 : 1.0;  // sums of int8 are in bf16
  EXPECT_NEAR(fan_in, kGroup / of_one, 0.15);
}

TEST_P(Aggregators, ALostAggregatorMovesItsWorkers) {
  GroupedRun flat{.transport = transport(), .push = push()};
  flat.run();
  auto first = start_aggregator(transport());
  const auto second = start_aggregator(transport());
  GroupedRun tree{.transport = transport(), .push = push(), .aggregators = {address(*first), address(*second)}};
  tree.before_step = [&](uint32_t worker, uint64_t step) {
    if (worker == 1 && step == kSteps / 2) first.reset();
  };
  tree.run();
  for (uint32_t worker = 0; worker < kWorkers; ++worker) EXPECT_EQ(tree.parameters[worker], flat.parameters[0]);
  EXPECT_THAT(tree.paths[0], testing::HasSubstr("through aggregator " + address(*second)));
}

INSTANTIATE_TEST_SUITE_P(All, Aggregators,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values(PushFormat(PushFormat::fp32), PushFormat(PushFormat::bf16),
                                                          PushFormat(PushFormat::int8))),
                         [](const auto& shape) {
                           return std::string(std::get<0>(shape.param)) + "_" +
                                  ps::push_format_name(std::get<1>(shape.param));
                         });

class AggregatorRuns : public testing::Test {
 protected:
  const Watchdog watchdog_;
};

TEST_F(AggregatorRuns, AnswersHaveTheBitsOfAFlatRunInEachFormat) {
  for (const char* transport : {"tcp", "shm"}) {
    uint64_t fp32_out = 0;
    for (const ps::ReturnFormat returns : {ps::ReturnFormat::fp32, ps::ReturnFormat::bf16, ps::ReturnFormat::delta}) {
      SCOPED_TRACE(fmt::format("{} {}", transport, ps::return_format_name(returns)));
      // A step changes few elements in topk, so that answers are deltas.
      const PushFormat push = returns == ps::ReturnFormat::delta ? PushFormat(PushFormat::topk, 10) : PushFormat::int4;
      GroupedRun flat{.transport = transport, .push = push, .returns = returns, .checksums = true};
      flat.run();
      const auto first = start_aggregator(transport);
      const auto second = start_aggregator(transport);
      GroupedRun tree = flat;
      tree.aggregators = {address(*first), address(*second)};
      tree.slot_bytes = 4096;
      tree.run();
      for (uint32_t worker = 0; worker < kWorkers; ++worker)
        EXPECT_EQ(tree.parameters[worker], flat.parameters[0]) << worker;
      EXPECT_EQ(tree.traffic.from_workers, 0u);
      // A worker that joins its group makes a new connection. The first answers over it are whole.
      if (returns == ps::ReturnFormat::delta) {
        EXPECT_LT(tree.traffic.out, fp32_out * 4 / 10);
        EXPECT_LT(tree.returned, flat.returned * 11 / 10);
        continue;
      }
      EXPECT_NEAR(static_cast<double>(flat.traffic.out) / static_cast<double>(tree.traffic.out), kGroup, 0.3);
      if (returns == ps::ReturnFormat::fp32) fp32_out = tree.traffic.out;
      if (returns == ps::ReturnFormat::bf16) {
        EXPECT_LT(tree.traffic.out, fp32_out * 6 / 10);
      }
    }
  }
}

TEST_F(AggregatorRuns, DeltasBeginAnewAtAnotherAggregatorAndAtTheShard) {
  // A step may sum other parts while workers move one by one. Sums of integers are exact in bf16.
  GroupedRun flat{.push = PushFormat(PushFormat::topk, 10), .returns = ps::ReturnFormat::delta, .scale = 1.0f};
  flat.run();
  auto first = start_aggregator("tcp");
  auto second = start_aggregator("tcp");
  GroupedRun tree = flat;
  tree.aggregators = {address(*first), address(*second)};
  tree.before_step = [&](uint32_t worker, uint64_t step) {
    if (worker == 1 && step == kSteps / 3) first.reset();
    if (worker == 1 && step == kSteps * 2 / 3) second.reset();
  };
  tree.run();
  for (uint32_t worker = 0; worker < kWorkers; ++worker)
    EXPECT_EQ(tree.parameters[worker], flat.parameters[0]) << worker;
  EXPECT_GT(tree.traffic.from_workers, 0u);
  EXPECT_GT(tree.traffic.from_aggregators, 0u);
}

TEST_F(AggregatorRuns, FewPlacesAtTheShardAndChecksumsGiveTheSameBits) {
  GroupedRun flat;
  flat.run();
  const auto first = start_aggregator("tcp");
  GroupedRun tree{.aggregators = {address(*first)}, .slot_bytes = 4096, .checksums = true};
  tree.run();
  EXPECT_EQ(tree.parameters[3], flat.parameters[3]);
  EXPECT_EQ(tree.traffic.from_workers, 0u);
}

TEST_F(AggregatorRuns, WithoutAWorkingAggregatorWorkersUseTheShards) {
  GroupedRun flat;
  flat.run();
  GroupedRun alone{.aggregators = {"127.0.0.1:1"}};
  alone.run();
  EXPECT_EQ(alone.parameters[2], flat.parameters[2]);
  EXPECT_THAT(alone.paths[2], testing::HasSubstr("aggregator 127.0.0.1:1 refused: "));
  EXPECT_EQ(alone.traffic.from_aggregators, 0u);
}

TEST_F(AggregatorRuns, AnAggregatorStoresIntoMemoryOfItsPathAlone) {
  const auto first = start_aggregator("shm");
  GroupedRun tree{.transport = "shm", .aggregators = {address(*first)}};
  tree.run();
  EXPECT_THAT(tree.paths[0], testing::HasSubstr("gradients mapped"));
  GroupedRun flat{.transport = "shm"};
  flat.run();
  EXPECT_THAT(flat.paths[0], testing::HasSubstr("memory mapped both ways"));
}

TEST_F(AggregatorRuns, ASumHasOneLearningRate) {
  const auto aggregator = start_aggregator("tcp");
  Cluster cluster({.worker_count = 2, .transports = {"tcp"}});
  std::vector<absl::Status> ends(2);
  in_parallel(2, [&](uint32_t worker) {
    ClientOptions options = cluster.options(worker, ps::ModeKind::sync);
    options.aggregators = {address(*aggregator)};
    options.sum_group = 2;
    const std::unique_ptr<Client> client = join(options, odd_schema());
    ASSERT_NE(client, nullptr);
    fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    ASSERT_TRUE(client->set_learning_rate(worker == 0 ? 1.0f : 8.0f).ok());
    fill_gradients(*client, worker, 1);
    client->exchange();
    ends[worker] = client->wait();
  });
  EXPECT_NE(ends[0].ok(), ends[1].ok()) << ends[0] << " " << ends[1];
  const absl::Status& refused = ends[0].ok() ? ends[1] : ends[0];
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("in mode sync all workers must set the same rate"));
}

TEST_F(AggregatorRuns, OptionsThatDoNotFitAreRefused) {
  Cluster cluster({.worker_count = 1});
  const auto why = [&](const std::function<void(ClientOptions&)>& change) {
    ClientOptions options = cluster.options(0, ps::ModeKind::sync);
    options.aggregators = {"127.0.0.1:1"};
    change(options);
    return Client::join(options, odd_schema()).status();
  };
  const absl::Status async = why([](ClientOptions& options) { options.mode = ps::ModeKind::async; });
  EXPECT_TRUE(absl::IsInvalidArgument(async)) << async;
  EXPECT_THAT(std::string(async.message()), testing::HasSubstr("need --mode sync"));
  const absl::Status large = why([](ClientOptions& options) { options.sum_group = 65; });
  EXPECT_THAT(std::string(large.message()), testing::HasSubstr("at most 64 workers"));
  const absl::Status twice = why([](ClientOptions& options) { options.aggregators = {"127.0.0.1:1", "127.0.0.1:1"}; });
  EXPECT_THAT(std::string(twice.message()), testing::HasSubstr("127.0.0.1:1 is in the list twice"));
  const absl::Status port = why([](ClientOptions& options) { options.aggregators = {"127.0.0.1"}; });
  EXPECT_THAT(std::string(port.message()), testing::HasSubstr("127.0.0.1 has no port"));
  const absl::Status joined = why([](ClientOptions& options) { options.aggregators = {"127.0.0.1:1,127.0.0.1:2"}; });
  EXPECT_THAT(std::string(joined.message()), testing::HasSubstr("is not an address"));
  const absl::Status many = why([](ClientOptions& options) { options.aggregators = {"127.0.0.1:1", "127.0.0.1:2"}; });
  EXPECT_THAT(std::string(many.message()), testing::HasSubstr("--aggregators: 2 aggregators for 1 worker: name"));
  ClientOptions options = cluster.options(0, ps::ModeKind::sync);
  options.sum_group = 1;
  const auto client = join(options, odd_schema());
  EXPECT_TRUE(absl::IsInvalidArgument(client->set_weight(2.0f)));
}

}  // namespace
}  // namespace gradrail::worker
