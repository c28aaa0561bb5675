// Parameters return in bf16 and delta: the bits of a run do not depend on transports, checksums, encryption or cuts.
#include <cmath>

#include "base/random.h"
#include "fmt/format.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/mode.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

struct Shape {
  std::string transport = "shm";
  uint32_t ps_count = 1;
  uint32_t shards_per_ps = 1;
  uint32_t bucket_bytes = 0;  ///< 0: the default
  bool checksums = false;
  bool encrypted = false;
};

constexpr uint64_t kSyncSteps = 12;

struct Outcome {
  std::vector<float> parameters[2];
  uint64_t bytes_returned = 0;
  uint64_t bytes_in_fp32 = 0;
};

/// Two workers; gradients do not depend on the parameters, so that the parameters at the ps are those of an fp32 run.
/// Few elements have gradients that change the upper half of their parameter.
Outcome run(const Shape& shape, ReturnFormat returns) {
  Cluster cluster({.ps_count = shape.ps_count,
                   .shards_per_ps = shape.shards_per_ps,
                   .transports = {shape.transport},
                   .encrypted = shape.encrypted});
  Outcome outcome;
  in_parallel(2, [&](uint32_t task) {
    ClientOptions options = cluster.options(task, ModeKind::sync);
    options.compression.returns = returns;
    options.transport.checksums = shape.checksums;
    if (shape.bucket_bytes > 0) options.bucket_bytes = shape.bucket_bytes;
    const std::unique_ptr<Client> client = join(options, odd_schema());
    ASSERT_NE(client, nullptr);
    fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    Random random(23, task);
    for (uint64_t step = 0; step < kSyncSteps; ++step) {
      for (size_t tensor = 0; tensor < odd_schema().size(); ++tensor) {
        for (float& value : client->gradients(tensor))
          value = static_cast<float>(random.normal()) * (random.below(8) == 0 ? 1.0f : 1e-4f);
        // As a program may do with its copy.
        for (float& value : client->parameters(tensor)) value *= 0.5f;
      }
      client->exchange();
      const absl::Status waited = client->wait();
      ASSERT_TRUE(waited.ok()) << waited;
    }
    outcome.parameters[task] = flatten(*client);
    if (task == 1) {
      outcome.bytes_returned = client->statistics().now().bytes_returned;
      outcome.bytes_in_fp32 = client->statistics().now().bytes_returned_fp32;
    }
    EXPECT_TRUE(client->barriers().wait("done").ok());
  });
  return outcome;
}

class ClientReturns : public ::testing::TestWithParam<ReturnFormat> {
 protected:
  const Watchdog watchdog_;
};

TEST_P(ClientReturns, SyncRunsAgreeBitForBit) {
  const Outcome fp32 = run({}, ReturnFormat::fp32);
  std::vector<uint16_t> upper(fp32.parameters[0].size());
  ps::round_to_bf16(fp32.parameters[0], upper.data());
  std::vector<float> expected(upper.size());
  ps::widen_bf16(upper.data(), absl::MakeSpan(expected));
  ASSERT_NE(expected, fp32.parameters[0]) << "the format rounds nothing";
  EXPECT_EQ(fp32.bytes_returned, fp32.bytes_in_fp32);
  for (const Shape& shape : {Shape{}, Shape{.transport = "tcp"}, Shape{.transport = "tcp", .checksums = true},
                             Shape{.transport = "tcp", .encrypted = true}, Shape{.checksums = true},
                             Shape{.ps_count = 2, .shards_per_ps = 3}, Shape{.bucket_bytes = 64},
                             Shape{.transport = "tcp", .shards_per_ps = 2, .bucket_bytes = 768, .checksums = true}}) {
    const Outcome got = run(shape, GetParam());
    const std::string text =
        fmt::format("{}, {}x{} shards, buckets of {}, checksums {}, encrypted {}", shape.transport, shape.ps_count,
                    shape.shards_per_ps, shape.bucket_bytes, shape.checksums, shape.encrypted);
    EXPECT_EQ(got.parameters[0], expected) << text;
    EXPECT_EQ(got.parameters[1], expected) << text;
    if (shape.bucket_bytes != 0) continue;
    // The first two answers are whole: to the start, and to the first push.
    const double share = static_cast<double>(got.bytes_returned) / static_cast<double>(got.bytes_in_fp32);
    if (GetParam() == ReturnFormat::bf16) {
      EXPECT_NEAR(share, 0.5, 0.03) << text;
    } else {
      EXPECT_LT(share, 0.25) << text;
    }
  }
}

/// NaN and infinity stay; a model of fewer elements than a mask, down to one.
TEST_P(ClientReturns, SmallModelsAndValuesThatAreNotFinite) {
  for (const int64_t elements : {1, 2, 63, 65, 130}) {
    for (const char* transport : {"shm", "tcp"}) {
      Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {transport}});
      ClientOptions options = cluster.options(0);
      options.compression.returns = GetParam();
      const std::unique_ptr<Client> client = join(options, {{"w", {elements}}});
      ASSERT_NE(client, nullptr);
      fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      for (int step = 0; step < 10; ++step) {
        for (float& value : client->gradients(0)) value = 0.0f;
        client->gradients(0)[0] = 1.0f;
        if (step == 5) client->gradients(0).back() = -INFINITY;
        if (step == 8) client->gradients(0).back() = INFINITY;
        client->exchange();
        ASSERT_TRUE(client->wait().ok());
        const float last = client->parameters(0).back();
        if (step >= 8) {
          EXPECT_TRUE(std::isnan(last)) << last;
        } else if (step >= 5) {
          EXPECT_EQ(last, INFINITY);
        }
        if (elements > 1) {
          EXPECT_EQ(client->parameters(0)[0], -static_cast<float>(step + 1));
        }
      }
    }
  }
}

/// async: the version of a bucket does not determine the parameters that a worker has.
TEST_P(ClientReturns, WorkersAtDifferentStepsReachTheSameParameters) {
  for (const char* transport : {"shm", "tcp"}) {
    Cluster cluster({.shards_per_ps = 2, .transports = {transport}});
    std::vector<float> result[2];
    in_parallel(2, [&](uint32_t task) {
      ClientOptions options = cluster.options(task);
      options.compression.returns = GetParam();
      options.bucket_bytes = 1024;
      const std::unique_ptr<Client> client = join(options, odd_schema());
      ASSERT_NE(client, nullptr);
      fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      for (uint64_t step = 1; step <= 100 + 50 * task; ++step) {
        fill_gradients(*client, task, step);
        client->exchange();
        ASSERT_TRUE(client->wait().ok());
        if (step % 40 == 0) {
          ASSERT_TRUE(client->pull().ok());
        }
      }
      ASSERT_TRUE(client->barriers().wait("steps").ok());
      // The last answer is one to a push: a delta to what this worker has.
      for (size_t tensor = 0; tensor < odd_schema().size(); ++tensor) {
        for (float& value : client->gradients(tensor)) value = 0.0f;
      }
      client->exchange();
      ASSERT_TRUE(client->wait().ok());
      result[task] = flatten(*client);
      ASSERT_TRUE(client->barriers().wait("done").ok());
    });
    for (size_t i = 0; i < result[0].size(); ++i) {
      float expected = initial_of(i);
      for (uint64_t step = 1; step <= 100; ++step) expected -= gradient_of(0, step, i);
      for (uint64_t step = 1; step <= 150; ++step) expected -= gradient_of(1, step, i);
      uint16_t upper;
      ps::round_to_bf16({&expected, 1}, &upper);
      ps::widen_bf16(&upper, {&expected, 1});
      ASSERT_EQ(result[0][i], expected) << transport << " " << i;
      ASSERT_EQ(result[1][i], expected) << transport << " " << i;
    }
  }
}

TEST_P(ClientReturns, WorkersWithAnotherFormatAreRefused) {
  Cluster cluster({});
  const std::unique_ptr<Client> first = join(cluster.options(0), odd_schema());
  ASSERT_NE(first, nullptr);
  ClientOptions options = cluster.options(1);
  options.compression.returns = GetParam();
  const absl::Status refused = Client::join(options, odd_schema()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(fmt::format("return fp32 in the run, {} at worker 1", return_format_name(GetParam()))));
}

INSTANTIATE_TEST_SUITE_P(Every, ClientReturns, ::testing::Values(ReturnFormat::bf16, ReturnFormat::delta),
                         [](const auto& each) { return std::string(return_format_name(each.param)); });

}  // namespace
}  // namespace gradrail::worker
