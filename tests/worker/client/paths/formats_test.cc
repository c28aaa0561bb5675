// Pushes in each format: the bits of a run do not depend on transports, checksums, encryption or cuts.
#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "fmt/format.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/push_format.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

/// Tensors around one block of 64 elements, and ones that no bucket of a block or chunk holds: 16,610 elements.
Schema block_schema() {
  return {{"one", {1}}, {"less", {63}}, {"more", {65}}, {"wide", {127, 33}}, {"two", {2}}, {"long", {3 * 4096}}};
}

struct Shape {
  std::string transport = "shm";
  uint32_t ps_count = 1;
  uint32_t shards_per_ps = 1;
  uint32_t bucket_bytes = 0;  ///< 0: the default
  bool checksums = false;
  bool encrypted = false;
};

constexpr int kSyncSteps = 8;

/// Three workers, so that sums depend on their order. Blocks with small and large gradients, zeros and infinity.
std::vector<float> parameters_after(const Shape& shape, PushFormat push) {
  Cluster cluster({.ps_count = shape.ps_count,
                   .shards_per_ps = shape.shards_per_ps,
                   .worker_count = 3,
                   .transports = {shape.transport},
                   .encrypted = shape.encrypted});
  std::vector<float> result;
  in_parallel(3, [&](uint32_t task) {
    ClientOptions options = cluster.options(task, ModeKind::sync);
    if (shape.bucket_bytes > 0) options.bucket_bytes = shape.bucket_bytes;
    set_push(options, push);
    options.optimizer = {.kind = OptimizerKind::adam, .learning_rate = 0.01f};
    options.transport.checksums = shape.checksums;
    const std::unique_ptr<Client> client = join(options, block_schema());
    ASSERT_NE(client, nullptr);
    EXPECT_EQ(client->statistics().now().paths[0].find("encrypted") != std::string::npos, shape.encrypted);
    if (task == 0) fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    Random random(17, task);
    for (int step = 0; step < kSyncSteps; ++step) {
      for (size_t tensor = 0; tensor < block_schema().size(); ++tensor) {
        size_t i = 0;
        for (float& value : client->gradients(tensor)) {
          value = static_cast<float>(std::ldexp(random.normal(), static_cast<int>(i++ / 50 % 9) - 4));
        }
      }
      client->exchange();
      const absl::Status waited = client->wait();
      ASSERT_TRUE(waited.ok()) << waited;
    }
    if (task == 1) {
      const uint64_t payload = kSyncSteps * ps::packed_bytes(flatten(*client).size(), push);
      EXPECT_GE(client->statistics().now().bytes_pushed, payload);
      EXPECT_LE(client->statistics().now().bytes_pushed,
                payload + payload / 2 + 300 * kSyncSteps * sizeof(ps::SlotHeader));
      result = flatten(*client);
    }
    EXPECT_TRUE(client->barriers().wait("done").ok());
  });
  return result;
}

class ClientFormats : public ::testing::TestWithParam<PushFormat> {
 protected:
  const Watchdog watchdog_;
};

TEST_P(ClientFormats, SyncRunsAgreeBitForBit) {
  const std::vector<float> expected = parameters_after({}, GetParam());
  ASSERT_FALSE(expected.empty());
  EXPECT_NE(expected, parameters_after({}, PushFormat::fp32)) << "the format rounds nothing";
  for (const Shape& shape : {Shape{.transport = "tcp"}, Shape{.transport = "tcp", .checksums = true},
                             Shape{.transport = "tcp", .encrypted = true}, Shape{.checksums = true},
                             Shape{.ps_count = 2, .shards_per_ps = 3}, Shape{.bucket_bytes = 256},
                             Shape{.transport = "tcp", .shards_per_ps = 2, .bucket_bytes = 768, .checksums = true}}) {
    EXPECT_EQ(expected, parameters_after(shape, GetParam()))
        << fmt::format("{}, {}x{} shards, buckets of {}, checksums {}, encrypted {}", shape.transport, shape.ps_count,
                       shape.shards_per_ps, shape.bucket_bytes, shape.checksums, shape.encrypted);
  }
}

/// A model of fewer elements than a block, down to one.
TEST_P(ClientFormats, SmallModels) {
  for (const int64_t elements : {1, 2, 63, 65}) {
    for (const char* transport : {"shm", "tcp"}) {
      Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {transport}});
      ClientOptions options = cluster.options(0);
      set_push(options, GetParam());
      const std::unique_ptr<Client> client = join(options, {{"w", {elements}}});
      ASSERT_NE(client, nullptr);
      fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      constexpr int kManySteps = 40;
      for (int step = 0; step < kManySteps; ++step) {
        for (size_t i = 0; i < client->gradients(0).size(); ++i) client->gradients(0)[i] = 0.1f * (i % 7 + 1);
        client->exchange();
        ASSERT_TRUE(client->wait().ok());
      }
      // Each rounding follows in a later step: half a step of int4 is missing at most, and the roundings of the sum. In
      // topk an element waits for the other ones at most.
      const float waits = GetParam().kind == PushFormat::topk ? 0.7f * static_cast<float>(elements - 1) : 0.0f;
      for (size_t i = 0; i < client->gradients(0).size(); ++i)
        EXPECT_NEAR(client->parameters(0)[i], initial_of(i) - kManySteps * 0.1f * (i % 7 + 1), 0.06f + waits) << i;
    }
  }
}

TEST_P(ClientFormats, ABucketThatCutsABlockIsRefused) {
  Cluster cluster({.worker_count = 1});
  ClientOptions options = cluster.options(0);
  options.compression.push = GetParam();
  options.bucket_bytes = 64;
  const absl::Status status = Client::join(options, block_schema()).status();
  if (const uint64_t bytes = ps::cut_elements(GetParam()) * sizeof(float); bytes > options.bucket_bytes) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(fmt::format("multiple of {} bytes with push", bytes)));
  } else {
    EXPECT_TRUE(status.ok()) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ClientFormats,
                         ::testing::Values(PushFormat::bf16, PushFormat::int8, PushFormat::int4,
                                           PushFormat(PushFormat::topk, 10), PushFormat(PushFormat::topk, 250)),
                         [](const auto& each) {
                           std::string name = push_format_name(each.param);
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

}  // namespace
}  // namespace gradrail::worker
