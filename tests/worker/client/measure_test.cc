// Options of the exchange for measurements: marks of both ends, and parts that are left out.
#include <map>

#include "base/check.h"
#include "base/flight_recorder.h"
#include "fmt/format.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

using Kind = Mark::Kind;
using ::testing::Each;

constexpr uint64_t kSteps = 3;

/// One worker, one shard with odd_schema(), `steps` exchanges of gradients that are all `gradient`.
struct Training {
  ClusterSpec spec{.ps = {}, .workers = {"127.0.0.1:1", "127.0.0.1:2"}};
  std::unique_ptr<ps::Server> server;

  explicit Training(const std::string& transport, size_t marks, ps::Ablation ablation) : transport_(transport) {
    absl::StatusOr<std::unique_ptr<ps::Server>> started = ps::Server::start({.listen_address = "127.0.0.1:0",
                                                                             .advertised_host = "127.0.0.1",
                                                                             .transports = {transport},
                                                                             .worker_names = spec.workers,
                                                                             .marks = marks,
                                                                             .ablation = ablation});
    GRADRAIL_CHECK(started.ok());
    server = *std::move(started);
    spec.ps = {fmt::format("127.0.0.1:{}", server->port())};
  }

  /// Returns the final parameters of worker 0. All gradients of worker w are w + 1.
  std::vector<float> train(size_t marks, ModeKind mode = ModeKind::sync) {
    std::vector<float> values;
    in_parallel(2, [&](uint32_t task) {
      const std::unique_ptr<Client> client = join({.cluster = spec,
                                                   .task_index = task,
                                                   .mode = {.kind = mode},
                                                   .optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 1.0f},
                                                   .bucket_bytes = 4096,
                                                   .transport = {.order = {transport_}},
                                                   .hooks = {.marks = marks}},
                                                  odd_schema());
      ASSERT_NE(client, nullptr);
      fill_all(*client, 10.0f);
      ASSERT_TRUE(client->start().ok());
      for (uint64_t step = 1; step <= kSteps; ++step) {
        for (size_t i = 0; i < client->schema().size(); ++i)
          std::fill_n(client->gradients(i).begin(), client->gradients(i).size(), static_cast<float>(task + 1));
        client->exchange();
        ASSERT_TRUE(client->wait().ok());
      }
      if (task == 0) {
        values = flatten(*client);
        marks_ = client->traces().marks();
      }
      EXPECT_TRUE(client->leave().ok());
    });
    return values;
  }

  const std::vector<Mark>& worker_marks() const { return marks_; }

 private:
  static void fill_all(Client& client, float value) {
    for (size_t i = 0; i < client.schema().size(); ++i)
      std::fill_n(client.parameters(i).begin(), client.parameters(i).size(), value);
  }

  std::string transport_;
  std::vector<Mark> marks_;
};

class Measurements : public ::testing::TestWithParam<const char*> {
 protected:
  void expect_marks_of_each_bucket(ModeKind mode);
};

void Measurements::expect_marks_of_each_bucket(ModeKind mode) {
  Training run(GetParam(), 4096, {});
  run.train(4096, mode);
  std::map<std::pair<uint64_t, uint32_t>, std::map<Kind, int64_t>> moments;  // by step and bucket, of worker 0
  for (const std::vector<Mark>& marks : {run.worker_marks(), run.server->marks()})
    for (const Mark& mark : marks)
      if (mark.worker == 0 && mark.kind != Kind::begun && mark.kind != Kind::done)
        moments[{mark.step, mark.bucket}][mark.kind] = mark.at_ns;
  const uint32_t buckets = (5454 * 4 + 4095) / 4096;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (uint32_t bucket = 0; bucket < buckets; ++bucket) {
      std::map<Kind, int64_t>& at = moments[{step, bucket}];
      for (const auto& [before, after] : {std::pair{Kind::pushed, Kind::posted},
                                          {Kind::pushed, Kind::noticed},
                                          {Kind::noticed, Kind::taken},
                                          {Kind::taken, Kind::applying},
                                          {Kind::applying, Kind::applied},
                                          {Kind::applied, Kind::answered}}) {
        ASSERT_TRUE(at.contains(before) && at.contains(after)) << "step " << step << " bucket " << bucket;
        EXPECT_LE(at[before], at[after]) << static_cast<int>(before) << " step " << step << " bucket " << bucket;
      }
    }
  }
}

TEST_P(Measurements, MarksFollowEachBucketThroughBothEnds) { expect_marks_of_each_bucket(ModeKind::sync); }

/// In async, each push but the first one of a worker is a lone one.
TEST_P(Measurements, MarksFollowALonePush) { expect_marks_of_each_bucket(ModeKind::async); }

TEST_P(Measurements, WithoutRoomThereAreNoMarks) {
  Training run(GetParam(), 0, {});
  run.train(0);
  EXPECT_TRUE(run.worker_marks().empty());
  EXPECT_TRUE(run.server->marks().empty());
}

TEST_P(Measurements, WhatIsLeftOutIsNotDone) {
  const float initial = 10.0f, steps = kSteps;
  EXPECT_THAT(Training(GetParam(), 0, {}).train(0), Each(initial - steps * 1.5f));
  EXPECT_THAT(Training(GetParam(), 0, {.no_sum = true}).train(0), Each(initial - steps * 1.0f));
  EXPECT_THAT(Training(GetParam(), 0, {.no_optimizer = true}).train(0), Each(1.5f));
  EXPECT_THAT(Training(GetParam(), 0, {.no_sum = true, .no_optimizer = true}).train(0), Each(initial));
  EXPECT_THAT(Training(GetParam(), 0, {.no_return = true}).train(0), Each(initial));
}

INSTANTIATE_TEST_SUITE_P(Transports, Measurements, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace gradrail::worker
