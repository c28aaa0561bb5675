// NaN or infinity of one worker reaches the parameters of all workers: the ps finds worker, tensor and step.
#include <cmath>
#include <limits>

#include "fmt/format.h"
#include "ps/protocol/control.pb.h"
#include "ps/protocol/push_format.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Plan {
  ModeKind mode = ModeKind::sync;
  uint32_t bound = 0;
  PushFormat push = PushFormat::fp32;
  OptimizerKind optimizer = OptimizerKind::sgd;
};

class NonFinite : public ::testing::TestWithParam<const char*> {
 protected:
  void begin(const Plan& run) {
    clients_.clear();
    run_ = run;
    cluster_ = std::make_unique<Cluster>(ClusterShape{.shards_per_ps = 2, .transports = {GetParam()}});
    for (uint32_t task = 0; task < 2; ++task) {
      ClientOptions options = cluster_->options(task, run.mode);
      options.mode.bound = run.bound;
      options.optimizer.kind = run.optimizer;
      set_push(options, run.push);
      clients_.push_back(join(options, odd_schema()));
      ASSERT_NE(clients_.back(), nullptr);
      fill_initial(*clients_.back());
      ASSERT_TRUE(clients_.back()->start().ok());
    }
  }

  /// The step of both workers. `change` writes into their gradients.
  void step(const std::function<void()>& change = [] {}) {
    ++step_;
    for (uint32_t task = 0; task < 2; ++task) fill_gradients(*clients_[task], task, step_);
    change();
    const auto exchange = [&](uint32_t task) {
      clients_[task]->exchange();
      EXPECT_TRUE(clients_[task]->wait().ok());
    };
    if (run_.mode == ModeKind::sync || run_.mode == ModeKind::quorum) return in_parallel(2, exchange);
    exchange(1);
    exchange(0);
  }

  ps::proto::StatsReply stats() { return cluster_->server(0).stats().value(); }
  /// "worker × gradients" of all workers with NaN or infinity.
  std::string counted() {
    std::string text;
    const ps::proto::StatsReply reply = stats();
    for (const auto& of : reply.non_finite_gradients())
      text += fmt::format("{} × {};", of.task_index(), of.gradients());
    return text;
  }
  /// The main thread of the ps makes the text.
  std::string text() {
    EXPECT_TRUE(eventually([&] { return !stats().non_finite().empty(); }));
    return stats().non_finite();
  }

  const Watchdog watchdog_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Client>> clients_;
  Plan run_;
  uint64_t step_ = 0;
};

TEST_P(NonFinite, IsFoundInEachModeAndFormat) {
  const size_t last = odd_schema().size() - 1;
  const size_t element = odd_schema()[last].elements() - 1;
  std::vector<Plan> runs = {{ModeKind::async},
                            {ModeKind::sync},
                            {ModeKind::ssp, 1},
                            {ModeKind::quorum, 2},
                            {.optimizer = OptimizerKind::adam}};
  for (const PushFormat push :
       std::vector<PushFormat>{PushFormat::bf16, PushFormat::int8, PushFormat::int4, PushFormat{PushFormat::topk, 100}})
    runs.push_back({.push = push});
  for (const Plan& run : runs) {
    SCOPED_TRACE(::testing::Message() << "mode " << static_cast<int>(run.mode) << ", " << push_format_name(run.push));
    step_ = 0;
    ASSERT_NO_FATAL_FAILURE(begin(run));
    step();
    EXPECT_EQ(stats().non_finite_buckets(), 0u);
    EXPECT_EQ(counted(), "");
    step([&] { clients_[1]->gradients(last)[element] = kNan; });
    EXPECT_EQ(stats().non_finite_buckets(), 1u);
    EXPECT_EQ(counted(), "1 × 1;");
    const std::string expected =
        fmt::format("NaN in tensor {}, element {}, step 2, of worker 1", odd_schema()[last].name, element);
    EXPECT_EQ(text(), expected);
    // The bucket has NaN from now on. What comes after is its result, or nothing new.
    step([&] { clients_[0]->gradients(last)[element] = kNan; });
    EXPECT_EQ(counted(), "1 × 1;");
    // Another bucket, of another shard, was finite. The first cause stays.
    step([&] { clients_[1]->gradients(0)[0] = kInfinity; });
    EXPECT_EQ(stats().non_finite_buckets(), 2u);
    EXPECT_EQ(counted(), "1 × 2;");
    EXPECT_EQ(text(), expected);
  }
}

/// GradScaler of PyTorch makes infinite gradients now and then, and leaves out the step.
TEST_P(NonFinite, EachStepOfAMeanCounts) {
  ASSERT_NO_FATAL_FAILURE(begin({.optimizer = OptimizerKind::mean}));
  for (int i = 1; i <= 3; ++i) {
    step([&] {
      clients_[0]->gradients(0)[1] = -kInfinity;
      clients_[1]->gradients(0)[1] = kInfinity;
    });
    EXPECT_EQ(stats().non_finite_buckets(), 1u);
    EXPECT_EQ(counted(), fmt::format("0 × {0};1 × {0};", i));
    step();
    EXPECT_EQ(stats().non_finite_buckets(), 0u);
  }
  EXPECT_THAT(text(), ::testing::StartsWith("-infinity in tensor"));
}

TEST_P(NonFinite, AnOverflowOfFiniteGradientsIsNoFaultOfAWorker) {
  ASSERT_NO_FATAL_FAILURE(begin({}));
  step([&] {
    for (const auto& client : clients_) client->gradients(0)[2] = std::numeric_limits<float>::max();
  });
  EXPECT_EQ(stats().non_finite_buckets(), 1u);
  EXPECT_EQ(counted(), "");
  EXPECT_EQ(text(), fmt::format("-infinity in tensor {}, element 2, step 1", odd_schema()[0].name));
}

/// Its square does not fit: Adam divides by infinity from now on, and the parameter stays where it is.
TEST_P(NonFinite, AnOverflowOfTheStateIsFound) {
  for (const OptimizerKind optimizer : {OptimizerKind::adam, OptimizerKind::torch_adam, OptimizerKind::adamw}) {
    step_ = 0;
    ASSERT_NO_FATAL_FAILURE(begin({.optimizer = optimizer}));
    step([&] {
      for (const auto& client : clients_) client->gradients(0)[2] = 3e20f;
    });
    EXPECT_TRUE(std::isfinite(clients_[0]->parameters(0)[2]));
    EXPECT_EQ(stats().non_finite_buckets(), 1u);
    EXPECT_EQ(counted(), "");
    EXPECT_EQ(text(), fmt::format("infinity in tensor {}, element 2, step 1", odd_schema()[0].name));
  }
}

TEST_P(NonFinite, InitialValuesAreLookedAt) {
  Cluster cluster({.worker_count = 1, .transports = {GetParam()}});
  const auto client = join(cluster.options(0), odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  client->parameters(0)[1] = kInfinity;
  ASSERT_TRUE(client->start().ok());
  const auto stats = [&] { return cluster.server(0).stats().value(); };
  EXPECT_EQ(stats().non_finite_buckets(), 1u);
  EXPECT_TRUE(eventually([&] { return !stats().non_finite().empty(); }));
  EXPECT_EQ(stats().non_finite(),
            fmt::format("infinity in tensor {}, element 1, step 0, of worker 0", odd_schema()[0].name));
}

INSTANTIATE_TEST_SUITE_P(Over, NonFinite, ::testing::Values("shm", "tcp"),
                         [](const auto& over) { return std::string(over.param); });

}  // namespace
}  // namespace gradrail::worker
