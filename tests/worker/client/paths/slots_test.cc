// Shards with fewer places for gradients than buckets: equal results, in each mode, whatever the order of the tensors.
#include <algorithm>
#include <thread>

#include "base/random.h"
#include "ps/protocol/control.pb.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

constexpr uint32_t kSlotWorkers = 3;
constexpr uint64_t kSlotSteps = 12;

struct SlotsPlan {
  const char* name;
  const char* transport = "tcp";
  ModeKind mode = ModeKind::sync;
  uint32_t bound = 0;
  PushFormat push = PushFormat::fp32;
  bool checksums = false;
  bool fragments = false;
};

Schema schema_of(const SlotsPlan& plan) {
  Schema schema = odd_schema();
  for (size_t i = 0; plan.fragments && i < schema.size(); ++i) schema[i].fragment = i % 2 == 0 ? "even" : "odd";
  return schema;
}

/// The parameters of each worker after kSlotSteps steps. Each worker reports its tensors in an order of its own.
std::vector<std::vector<float>> run_slots(const SlotsPlan& plan, uint64_t slot_bytes) {
  Cluster cluster({.ps_count = 2,
                   .shards_per_ps = 2,
                   .worker_count = kSlotWorkers,
                   .transports = {plan.transport},
                   .slot_bytes = slot_bytes});
  std::vector<std::vector<float>> parameters(kSlotWorkers);
  in_parallel(kSlotWorkers, [&](uint32_t worker) {
    ClientOptions options = cluster.options(worker, plan.mode);
    options.mode.bound = plan.bound;
    options.compression.push = plan.push;
    options.transport.checksums = plan.checksums;
    options.bucket_bytes = 256;
    const std::unique_ptr<Client> client = join(options, schema_of(plan));
    ASSERT_NE(client, nullptr);
    fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    Random random(99, worker);
    for (uint64_t number = 1; number <= kSlotSteps; ++number) {
      fill_gradients(*client, worker, number);
      for (uint64_t i = 0; i < 3; ++i) client->ready(random.below(client->schema().size()));
      client->exchange();
      const absl::Status waited = client->wait();
      ASSERT_TRUE(waited.ok()) << waited;
    }
    ASSERT_TRUE(client->finish_steps().ok());
    ASSERT_TRUE(client->barriers().wait("the end").ok());
    ASSERT_TRUE(client->pull().ok());
    parameters[worker] = flatten(*client);
    EXPECT_EQ(client->statistics().now().dropped, 0u);
  });
  return parameters;
}

class ClientSlots : public ::testing::TestWithParam<SlotsPlan> {
 protected:
  const Watchdog watchdog_;
};

TEST_P(ClientSlots, FewPlacesGiveTheSameParameters) {
  const std::vector<std::vector<float>> all = run_slots(GetParam(), 0);
  for (const uint64_t slot_bytes : {1u, 1024u}) {
    const std::vector<std::vector<float>> few = run_slots(GetParam(), slot_bytes);
    for (uint32_t worker = 0; worker < kSlotWorkers; ++worker) {
      // The gradients are whole numbers: their sum does not depend on the order of the updates.
      EXPECT_EQ(few[worker], all[0]) << slot_bytes << " bytes, worker " << worker;
    }
  }
}

// One of two workers has pushed: one bucket of each shard. In quorum:2 both are needed.
TEST(Slots, AnUnansweredBucketKeepsItsPlaceInEachMode) {
  const Watchdog watchdog;
  constexpr uint64_t kBucketBytes = 256;
  for (const ModeKind mode : {ModeKind::sync, ModeKind::ssp, ModeKind::quorum}) {
    Cluster cluster({.worker_count = 2, .transports = {"tcp"}, .slot_bytes = 1});
    std::vector<std::unique_ptr<Client>> clients;
    for (uint32_t worker = 0; worker < 2; ++worker) {
      ClientOptions options = cluster.options(worker, mode);
      options.mode.bound = mode == ModeKind::quorum ? 2 : 0;
      options.bucket_bytes = kBucketBytes;
      clients.push_back(join(options, odd_schema()));
      ASSERT_NE(clients.back(), nullptr);
      if (worker == 0) fill_initial(*clients[0]);
      ASSERT_TRUE(clients.back()->start().ok());
    }
    const auto bytes_in = [&] {
      uint64_t bytes = 0;
      const absl::StatusOr<ps::proto::StatsReply> stats = cluster.server(0).stats();
      for (const auto& path : stats->paths()) bytes += path.bytes_in();
      return bytes;
    };
    const uint64_t before = bytes_in();
    for (uint32_t worker = 0; worker < 2; ++worker) fill_gradients(*clients[worker], worker, 1);
    clients[0]->exchange();
    EXPECT_TRUE(eventually([&] { return bytes_in() > before; }));
    std::this_thread::sleep_for(50ms);
    EXPECT_LT(bytes_in() - before, 2 * kBucketBytes) << static_cast<int>(mode);
    std::thread other([&] {
      clients[1]->exchange();
      EXPECT_TRUE(clients[1]->wait().ok());
    });
    EXPECT_TRUE(clients[0]->wait().ok());
    other.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, ClientSlots,
                         ::testing::Values(SlotsPlan{.name = "sync"}, SlotsPlan{.name = "shm", .transport = "shm"},
                                           SlotsPlan{.name = "async", .mode = ModeKind::async},
                                           SlotsPlan{.name = "ssp", .mode = ModeKind::ssp, .bound = 1},
                                           SlotsPlan{.name = "quorum", .mode = ModeKind::quorum, .bound = kSlotWorkers},
                                           SlotsPlan{.name = "int8", .push = PushFormat::int8},
                                           SlotsPlan{.name = "checksums", .checksums = true},
                                           SlotsPlan{.name = "fragments", .fragments = true}),
                         [](const auto& plan) { return std::string(plan.param.name); });

}  // namespace
}  // namespace gradrail::worker
