// The connection of an aggregator to a shard: proofs of its members, and their newer paths.
#include "worker/aggregator/shard_side.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/protocol/schema.h"
#include "tests/worker/client/cluster.h"
#include "tests/worker/client/raw_worker.h"
#include "transport/registry.h"

namespace gradrail::aggregator {
namespace {

using worker::RawWorker;

const ps::Schema kVariables = {{"w", {100}}};

class GroupAtAShard : public testing::Test {
 protected:
  GroupAtAShard() : cluster_({.worker_count = 2, .transports = {"shm", "tcp"}}) {
    for (uint32_t task = 0; task < 2; ++task) {
      worker::ClientOptions options = cluster_.options(task, ps::ModeKind::sync);
      options.bucket_bytes = 64;
      options.sum_group = 2;
      workers_.push_back(std::make_unique<RawWorker>(options, kVariables));
    }
  }

  void SetUp() override {
    for (const auto& each : workers_) ASSERT_TRUE(each->join().ok());
  }

  GroupMember member(uint32_t task, uint64_t number = 1) const {
    return {task, workers_[task]->incarnation(), number, workers_[task]->joined().token()};
  }

  std::unique_ptr<ShardSide> side() {
    std::vector<ps::ShardEndpoint> endpoints;
    for (const auto& endpoint : workers_[0]->joined().shards(0).endpoints())
      endpoints.push_back({endpoint.transport(), endpoint.address(), ""});
    return side_at(std::move(endpoints));
  }

  std::unique_ptr<ShardSide> side_at(std::vector<ps::ShardEndpoint> endpoints) {
    ShardTarget target{.map = std::make_shared<const ps::ShardMap>(ps::ShardMap::cut(100, 1, 64).value()),
                       .host_id = transport::host_id(),
                       .endpoints = std::move(endpoints)};
    auto made = std::make_unique<ShardSide>(ShardSide::Options{.transports = {"shm", "tcp"}}, std::move(target),
                                            parameters_.span(), sums_.span(), wait_set_);
    sides_.push_back(made.get());
    return made;
  }

  /// Until the connection is active, or has ended.
  void drive(ShardSide& side) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
    while (side.failure().empty() && !side.is_active() && Clock::now() < deadline) poll();
  }
  void poll() {
    transport::Completion arrived[8];
    const size_t count = wait_set_.wait(arrived, Clock::now() + std::chrono::milliseconds(1));
    for (ShardSide* const side : sides_) {
      for (size_t i = 0; i < count; ++i) {
        if (side->owns(arrived[i].connection)) side->on_completion(arrived[i]);
      }
      side->advance();
    }
  }

  const worker::Watchdog watchdog_;
  worker::Cluster cluster_;
  std::vector<std::unique_ptr<RawWorker>> workers_;
  transport::WaitSet wait_set_{transport::kAdaptiveWait};
  SharedMemory parameters_ = SharedMemory::create("parameters", 400).value();
  std::vector<ShardSide*> sides_;
  SharedMemory sums_ = SharedMemory::create("sums", 400).value();
};

TEST_F(GroupAtAShard, WithTheKeysOfItsMembersItBecomesActive) {
  const auto both = side();
  ASSERT_TRUE(both->open({member(0), member(1)}).ok());
  drive(*both);
  EXPECT_TRUE(both->is_active()) << both->failure();
}

TEST_F(GroupAtAShard, AShardIsReachedWhenItAnswers) {
  EXPECT_TRUE(side()->reach().ok());
  const auto stopped = transport::find_transport("tcp").value()->open({}).value();
  const absl::Status reached = side_at({{"tcp", stopped->listen("127.0.0.1:0").value(), ""}})->reach();
  EXPECT_EQ(reached.message(), "the shard accepts connections and does not answer");
}

TEST_F(GroupAtAShard, AMemberWithoutItsKeyIsRefused) {
  const auto both = side();
  GroupMember other = member(1);
  other.key[0] ^= 1;
  ASSERT_TRUE(both->open({member(0), other}).ok());
  drive(*both);
  EXPECT_FALSE(both->is_active());
  EXPECT_THAT(both->take_refused(), testing::ElementsAre(1));
  // The transport was not the cause.
  ASSERT_TRUE(both->open({member(0)}).ok());
  drive(*both);
  ASSERT_TRUE(both->is_active()) << both->failure();
  EXPECT_EQ(both->path().connection_path(), "shm");
}

TEST_F(GroupAtAShard, AnOldConnectionDoesNotTakeAWorkerBack) {
  const auto newer = side();
  ASSERT_TRUE(newer->open({member(0, 5)}).ok());
  drive(*newer);
  ASSERT_TRUE(newer->is_active()) << newer->failure();
  const auto older = side();
  ASSERT_TRUE(older->open({member(0, 4), member(1, 1)}).ok());
  drive(*older);
  EXPECT_THAT(older->take_refused(), testing::ElementsAre(0));
  for (int i = 0; i < 20; ++i) poll();
  EXPECT_TRUE(newer->is_active());
  // The next path of the worker ends the connection that it was on.
  const auto newest = side();
  ASSERT_TRUE(newest->open({member(0, 6)}).ok());
  drive(*newest);
  EXPECT_TRUE(newest->is_active()) << newest->failure();
  while (newer->failure().empty()) poll();
}

}  // namespace
}  // namespace gradrail::aggregator
