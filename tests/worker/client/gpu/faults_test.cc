// Faults of a GPU and of its network device during a run.
#include "base/status.h"
#include "gpu/direct/dma_buf.h"
#include "ps/protocol/exchange_layout.h"
#include "tests/gpu/simulation.h"
#include "tests/worker/client/gpu/gpu_worker.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;

class ClientGpuFaults : public ::testing::Test {
 protected:
  ClientGpuFaults() { find_simulated_nic(); }
  const Watchdog watchdog_;
};

/// The simulated driver fails the first launch that comes between a network device's writing and a flush.
TEST_F(ClientGpuFaults, WhatANetworkDeviceWroteIsFlushedOnceAnExchange) {
  gpu::Simulation::configure("ordering=0");
  Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {"simnic"}});
  GpuWorker worker;
  worker.join(cluster.options(0));
  ASSERT_TRUE(worker.has_joined());
  fill_initial(worker.client());
  ASSERT_TRUE(worker.client().start().ok());
  const uint64_t before = worker.client().statistics().now().flushes;
  EXPECT_EQ(before, 3u);  // two paths were checked, and the values offered
  constexpr uint64_t kSteps = 5;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    ASSERT_TRUE(worker.step(0, step).ok());
    const float* one = worker.memory().parameters;
    worker.device().sum(absl::MakeConstSpan(&one, 1), 1, 1.0f, worker.memory().gradients);
    ASSERT_TRUE(worker.device().finish().ok()) << "step " << step;
  }
  EXPECT_EQ(worker.client().statistics().now().flushes, before + kSteps);
}

TEST_F(ClientGpuFaults, DevicesThatOrderWritesAreNotFlushed) {
  gpu::Simulation::configure("");
  Cluster cluster({.worker_count = 1, .transports = {"simnic"}});
  GpuWorker worker;
  worker.join(cluster.options(0));
  ASSERT_TRUE(worker.has_joined());
  ASSERT_TRUE(worker.client().start().ok());
  ASSERT_TRUE(worker.step(0, 1).ok());
  EXPECT_EQ(worker.client().statistics().now().flushes, 0u);
}

TEST_F(ClientGpuFaults, LostDeviceIsReportedByWait) {
  for (const char* transport : {"tcp", "simnic"}) {
    SCOPED_TRACE(transport);
    gpu::Simulation::configure("ordering=0,lose=0@1");
    Cluster cluster({.worker_count = 1, .transports = {transport}});
    GpuWorker worker;
    ClientOptions options = cluster.options(0);
    options.recovery.rejoin_timeout = 3600s;  // the test does not wait so long
    worker.join(options);
    ASSERT_TRUE(worker.has_joined());
    ASSERT_TRUE(worker.client().start().ok());
    worker.write_gradients(0, 1);
    const float* one = worker.memory().parameters;
    worker.device().sum(absl::MakeConstSpan(&one, 1), 1, 1.0f, worker.memory().gradients);  // lost by this launch
    worker.device().finish().IgnoreError();
    worker.client().exchange();
    const absl::Status waited = worker.client().wait();
    EXPECT_TRUE(absl::IsUnavailable(waited)) << waited;
    EXPECT_THAT(std::string(message_of(waited)), HasSubstr("GPU 0"));
    EXPECT_TRUE(worker.client().device().has_failed());
    EXPECT_TRUE(worker.client().give_up("its GPU was lost").ok());
  }
}

TEST_F(ClientGpuFaults, NothingLeavesADeviceThatIsLostWhilePacking) {
  for (const char* transport : {"tcp", "simnic"}) {
    SCOPED_TRACE(transport);
    gpu::Simulation::configure("ordering=0,lose=0@2");  // the first launch of a kernel is that of the join
    Cluster cluster({.worker_count = 1, .transports = {transport}});
    ClientOptions options = cluster.options(0);
    options.compression.push = PushFormat::bf16;
    options.recovery.rejoin_timeout = 3600s;  // for a lost ps: no restart of one would bring this device back
    GpuWorker worker;
    worker.join(options);
    ASSERT_TRUE(worker.has_joined());
    ASSERT_TRUE(worker.client().start().ok());
    const absl::Status waited = worker.step(0, 1);
    EXPECT_TRUE(absl::IsUnavailable(waited)) << waited;
    EXPECT_THAT(std::string(message_of(waited)), HasSubstr("GPU 0"));
    EXPECT_TRUE(worker.client().device().has_failed());
    EXPECT_TRUE(worker.client().give_up("its GPU was lost").ok());
    EXPECT_THAT(cluster.server(0).summary()[0], HasSubstr("0 bucket updates"));
  }
}

/// A fault of the shard's GPU: slots are in host memory then, and the worker's GPU counts as healthy.
TEST_F(ClientGpuFaults, ShardWithAnUnreachableGpuTakesGradientsInHostMemory) {
  gpu::Simulation::configure("devices=2");
  const NicFault fault("wrong_source");
  Cluster cluster({.worker_count = 1, .transports = {"simnic"}, .device = "gpu:1"});
  GpuWorker worker;
  ClientOptions options = cluster.options(0);
  options.placement.gpu_transfers = {GpuTransfer::dma_buf};
  worker.join(options);
  ASSERT_TRUE(worker.has_joined());
  fill_initial(worker.client());
  ASSERT_TRUE(worker.client().start().ok());
  ASSERT_TRUE(worker.step(0, 1).ok());
  EXPECT_EQ(worker.parameters()[7], initial_of(7) - gradient_of(0, 1, 7));
  EXPECT_THAT(worker.client().device().text(), HasSubstr("dmabuf ("));
  EXPECT_THAT(cluster.server(0).summary(), ::testing::Contains(HasSubstr("path tcp gpu-direct(dmabuf):")));
}

TEST_F(ClientGpuFaults, ChecksumsOfWhatArrivesInAGpu) {
  gpu::Simulation::configure("devices=2,ordering=0");
  for (const PushFormat push : {PushFormat::fp32, PushFormat::bf16, PushFormat::int4}) {
    Cluster cluster({.worker_count = 1, .transports = {"simnic"}, .device = "gpu:1"});
    ClientOptions options = cluster.options(0);
    options.transport.checksums = true;
    options.compression.push = push;
    const std::unique_ptr<Client> client = join(options, odd_schema());
    ASSERT_NE(client, nullptr);
    fill_initial(*client);
    ASSERT_TRUE(client->start().ok());
    for (uint64_t step = 1; step <= 3; ++step) {
      fill_gradients(*client, 0, step);
      client->exchange();
      const absl::Status waited = client->wait();
      ASSERT_TRUE(waited.ok()) << waited;
    }
    EXPECT_THAT(cluster.server(0).summary(), ::testing::Contains(HasSubstr("into GPU memory")));
  }
}

TEST_F(ClientGpuFaults, ABlockWithoutRoomForPackedGradientsIsRefused) {
  Cluster cluster({.worker_count = 1, .transports = {"tcp"}});
  const GpuWorker worker;
  ClientOptions options = cluster.options(0);
  options.compression.push = PushFormat::bf16;
  options.placement.device = worker.memory();
  const auto expect_refused = [&](const char* why) {
    const absl::Status refused = Client::join(options, odd_schema()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(message_of(refused)), AllOf(HasSubstr("push bf16: "), HasSubstr(why)));
  };
  options.placement.device.bytes = ps::device_check_at(odd_elements(), PushFormat::bf16) - 1;
  expect_refused("the block of GPU memory has");
  options.placement.device = worker.memory();
  options.placement.device.gradients += 16;
  expect_refused("the gradients do not lie");
}

TEST_F(ClientGpuFaults, TopkIsRefused) {
  gpu::Simulation::configure("devices=2");
  const auto expect_refused = [&](const ClientOptions& options, const char* why) {
    const absl::Status refused = Client::join(options, odd_schema()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(message_of(refused)), AllOf(HasSubstr("push topk:1: "), HasSubstr(why)));
  };
  const GpuWorker worker;
  Cluster on_host({.worker_count = 1, .transports = {"tcp"}});
  ClientOptions options = on_host.options(0);
  options.compression.push = {PushFormat::topk, 10};
  options.bucket_bytes = 16384;
  options.placement.device = worker.memory();
  expect_refused(options, "a GPU does not pack it");

  Cluster on_gpu({.worker_count = 1, .transports = {"tcp"}, .device = "gpu:1"});
  options = on_gpu.options(0);
  options.compression.push = {PushFormat::topk, 10};
  options.bucket_bytes = 16384;
  expect_refused(options, "parameters in GPU memory do not take it");
}

/// A bucket is sent as soon as it is in host memory, while the rest of its tensor is still being copied.
TEST_F(ClientGpuFaults, FirstBucketsLeaveBeforeTheTensorIsOnTheHost) {
  gpu::Simulation::configure("delay=20000");
  Cluster cluster({.worker_count = 1, .transports = {"tcp"}});
  GpuWorker worker;
  worker.join(cluster.options(0));
  ASSERT_TRUE(worker.has_joined());
  ASSERT_TRUE(worker.client().start().ok());
  const uint64_t before = worker.client().statistics().now().bytes_pushed;
  constexpr size_t kWide = 4;  // 17 kB: four buckets and more
  worker.write_gradients(0, 1);
  worker.client().ready(kWide);
  uint64_t pushed = 0;
  ASSERT_TRUE(eventually([&] {
    worker.client().device().progress();
    return (pushed = worker.client().statistics().now().bytes_pushed - before) > 0;
  }));
  EXPECT_LT(pushed, 3 * 4096u);
  worker.client().exchange();
  EXPECT_TRUE(worker.client().wait().ok());
}

/// A shard may put an answer directly behind Active. The worker crashed: its link had no path yet.
TEST_F(ClientGpuFaults, ANoticeOnAPathThatIsNotYetInUseIsIgnored) {
  gpu::Simulation::configure("");
  const NicFault fault("early,lose=30");
  Cluster cluster({.worker_count = 1, .transports = {"simnic"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"simnic"};
  const std::unique_ptr<Client> client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  constexpr uint64_t kSteps = 20;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    fill_gradients(*client, 0, step);
    client->exchange();
    const absl::Status waited = client->wait();
    ASSERT_TRUE(waited.ok()) << waited;
  }
  EXPECT_GT(client->statistics().now().moves, 0u);
  const std::vector<float> got = flatten(*client);
  for (size_t i = 0; i < got.size(); ++i) {
    float expected = initial_of(i);
    for (uint64_t step = 1; step <= kSteps; ++step) expected -= gradient_of(0, step, i);
    ASSERT_EQ(got[i], expected) << i;
  }
}

}  // namespace
}  // namespace gradrail::worker
