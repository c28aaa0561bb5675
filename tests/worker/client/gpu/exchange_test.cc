// Variables at home in GPU memory: whichever way they travel, the bits are those of variables in the host's memory.
#include <future>

#include "base/status.h"
#include "fmt/format.h"
#include "ps/protocol/push_format.h"
#include "tests/gpu/simulation.h"
#include "tests/worker/client/gpu/gpu_worker.h"

namespace gradrail::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kSteps = 6;
constexpr float kScale = 0.3f;        // bf16 rounds the gradients
constexpr size_t kHeaders = 8 << 10;  // bytes of all headers of a run, at most

struct Route {
  const char* name;
  const char* transport;
  const char* ps_device;
  bool on_gpu;
  std::vector<GpuTransfer> ways;
  const char* path;  ///< as bytes are counted
  const char* ps_path = "";
};

/// The shard has decided all updates of a step. Its device may still compute them.
bool has_updated_all(Cluster& cluster) {
  return cluster.server(0).summary()[0].find("6 bucket updates") != std::string::npos;
}

class ClientGpu : public ::testing::Test {
 protected:
  ClientGpu() {
    gpu::Simulation::configure("devices=3");
    find_simulated_nic();
  }
  const Watchdog watchdog_;
};

struct Training {
  OptimizerKind optimizer = OptimizerKind::sgd;
  PushFormat push = PushFormat::fp32;
  ReturnFormat returns = ReturnFormat::fp32;
};

ClientOptions options_for(const Cluster& cluster, uint32_t index, const Route& route, const Training& training) {
  ClientOptions options = cluster.options(index);
  options.mode.kind = ModeKind::sync;
  options.optimizer.kind = training.optimizer;
  options.optimizer.learning_rate = 0.01f;
  options.compression.push = training.push;
  options.compression.returns = training.returns;
  options.placement.gpu_transfers = route.ways;
  return options;
}

/// A sync run of two workers; worker 0's parameters where they are at home, which are both's.
std::vector<float> run(const Route& route, const Training& training) {
  Cluster cluster({.ps_count = 2, .shards_per_ps = 2, .transports = {route.transport}, .device = route.ps_device});
  std::vector<float> result[2];
  in_parallel(2, [&](uint32_t index) {
    GpuWorker gpu(static_cast<int>(index));
    gpu.set_scale(kScale);
    const ClientOptions options = options_for(cluster, index, route, training);
    std::unique_ptr<Client> on_host;
    if (route.on_gpu) {
      gpu.join(options);
    } else {
      on_host = join(options, odd_schema());
    }
    Client& client = route.on_gpu ? gpu.client() : *on_host;
    if (index == 0) fill_initial(client);
    // The initial values leave from the memory of gradients, which is the trainer's again after the start.
    if (route.on_gpu) gpu.write_gradients(index, 7);
    const std::vector<float> written = route.on_gpu ? gpu.gradients() : std::vector<float>();
    ASSERT_TRUE(client.start().ok());
    if (route.on_gpu) {
      EXPECT_EQ(gpu.gradients(), written);
    }
    for (uint64_t step = 1; step <= kSteps; ++step) {
      if (!route.on_gpu) {
        fill_gradients(client, index, step);
        scale_gradients(client, kScale);
        client.exchange();
      }
      const absl::Status waited = route.on_gpu ? gpu.step(index, step) : client.wait();
      ASSERT_TRUE(waited.ok()) << waited;
    }
    result[index] = route.on_gpu ? gpu.parameters() : flatten(client);
    EXPECT_TRUE(client.device().fetch().ok());
    EXPECT_EQ(flatten(client), result[index]);
    for (const ClientStats::PathBytes& bytes : client.statistics().now().path_bytes) {
      EXPECT_EQ(bytes.path, route.path);
      const uint64_t gradients = kSteps * ps::packed_bytes(odd_elements(), training.push);
      EXPECT_GT(bytes.pushed, gradients);
      EXPECT_LT(bytes.pushed, gradients + (index == 0 ? sizeof(float) : 0) * odd_elements() + kHeaders);
    }
    EXPECT_TRUE(client.barriers().wait("done").ok());
  });
  EXPECT_EQ(result[0], result[1]);
  if (route.ps_path[0] != '\0') {
    EXPECT_THAT(cluster.server(0).summary(), ::testing::Contains(HasSubstr(fmt::format("path {}:", route.ps_path))));
  }
  return result[0];
}

TEST_F(ClientGpu, BitsAreTheSameWhicheverWay) {
  const Route host{"host", "tcp", "host", false, {}, "tcp"};
  const std::vector<Route> others = {
      {"staged over tcp", "tcp", "host", true, {}, "tcp staged"},
      {"staged over shared memory", "shm", "host", true, {}, "shm staged"},
      {"staged to a GPU", "shm", "gpu:2", true, {}, "shm staged"},
      {"from a host into a GPU", "simnic", "gpu:2", false, {}, "tcp", "tcp into GPU memory"},
      {"staged into a GPU", "simnic", "gpu:2", true, {}, "tcp staged", "tcp into GPU memory"},
      {"by dma-buf",
       "simnic",
       "host",
       true,
       {GpuTransfer::dma_buf},
       "tcp gpu-direct(dmabuf)",
       "tcp gpu-direct(dmabuf)"},
      {"by dma-buf into a GPU",
       "simnic",
       "gpu:2",
       true,
       {GpuTransfer::dma_buf},
       "tcp gpu-direct(dmabuf)",
       "tcp gpu-direct(dmabuf) into GPU memory"},
  };
  for (const Training& training :
       {Training{}, Training{OptimizerKind::adam}, Training{.push = PushFormat::bf16},
        Training{.push = PushFormat::int8}, Training{.push = PushFormat::int4}, Training{.returns = ReturnFormat::bf16},
        Training{.push = PushFormat::int8, .returns = ReturnFormat::delta}}) {
    const std::vector<float> expected = run(host, training);
    for (const Route& route : others) {
      SCOPED_TRACE(route.name);
      EXPECT_EQ(run(route, training), expected);
    }
  }
}

TEST_F(ClientGpu, SaysWhichWayAndWhyNoOther) {
  Cluster cluster({.worker_count = 1, .transports = {"simnic"}});
  GpuWorker worker;
  worker.join(cluster.options(0));
  ASSERT_TRUE(worker.has_joined());
  EXPECT_THAT(worker.client().device().text(), AllOf(StartsWith("dmabuf (the network device reads"),
                                                     HasSubstr("ipc: parameter server 0"), HasSubstr("--ps_device")));
  EXPECT_THAT(worker.client().statistics().now().paths[0], HasSubstr("gpu-direct(dmabuf)"));
  worker.leave();

  Cluster another({.worker_count = 1, .transports = {"simnic"}});
  GpuWorker unpacking;
  ClientOptions options = another.options(0);
  options.compression.returns = ReturnFormat::bf16;
  unpacking.join(options);
  ASSERT_TRUE(unpacking.has_joined());
  EXPECT_THAT(unpacking.client().device().text(), HasSubstr("; parameters in bf16 pass through host memory"));
}

/// CUDA maps memory of other processes only: what ipc cannot do here, the network device can.
TEST_F(ClientGpu, TriesOneWayAfterTheOther) {
  Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {"simnic"}, .device = "gpu:1"});
  GpuWorker worker;
  worker.join(cluster.options(0));
  ASSERT_TRUE(worker.has_joined());
  EXPECT_THAT(worker.client().device().text(),
              AllOf(StartsWith("dmabuf ("), HasSubstr("ipc: "), HasSubstr("this process")));
  ASSERT_TRUE(worker.client().start().ok());
  EXPECT_TRUE(worker.step(0, 1).ok());
}

struct Refusal {
  const char* driver;
  const char* nic;
  const char* why;
};

TEST_F(ClientGpu, WhatCannotBeReachedIsStagedWithTheReason) {
  for (const Refusal& refusal :
       {Refusal{"dma_buf=0", "", "dmabuf: GPU 0 .*does not support dma-buf.*open kernel module"},
        Refusal{"ordering=0,flush=0", "", "dmabuf: GPU 0 .*does not order what network"},
        Refusal{"", "refuse", "dmabuf: simnic: the card refuses this memory"},
        Refusal{"", "host", "dmabuf: simnic moves host memory only"},
        Refusal{"", "damage", "dmabuf: .*the checked transfer arrived damaged"}}) {
    SCOPED_TRACE(refusal.why);
    gpu::Simulation::configure(refusal.driver);
    const NicFault fault(refusal.nic);
    Cluster cluster({.worker_count = 1, .transports = {"simnic"}});
    GpuWorker worker;
    worker.join(cluster.options(0));
    ASSERT_TRUE(worker.has_joined());
    EXPECT_THAT(worker.client().device().text(), ::testing::ContainsRegex(refusal.why));
    EXPECT_THAT(worker.client().device().text(), StartsWith("staged through pinned host memory (ipc: "));
    fill_initial(worker.client());
    ASSERT_TRUE(worker.client().start().ok());
    EXPECT_TRUE(worker.step(0, 1).ok());
    EXPECT_EQ(worker.client().statistics().now().path_bytes[0].path, "tcp staged");
    EXPECT_EQ(worker.parameters()[7], initial_of(7) - gradient_of(0, 1, 7));
    worker.leave();

    Cluster another({.worker_count = 1, .transports = {"simnic"}});  // the run of the first one has ended
    ClientOptions forced = another.options(0);
    forced.placement.gpu_transfers = {GpuTransfer::dma_buf};
    forced.placement.require_device = true;
    forced.placement.device = worker.memory();
    const absl::Status status = Client::join(forced, odd_schema()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(message_of(status)), ::testing::ContainsRegex(refusal.why));
  }
}

TEST_F(ClientGpu, AShardServesWhileItsDeviceWorks) {
  // For each of the 6 buckets, one launch stores the initial values, and one copies them to the worker.
  gpu::Simulation::configure("devices=3,hang=1@13");
  Cluster cluster({.worker_count = 1, .device = "gpu:1"});
  const std::unique_ptr<Client> client = join(cluster.options(0), odd_schema());
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  fill_gradients(*client, 0, 1);
  client->exchange();
  // The shard has given all updates to the device, which hangs behind the first one.
  EXPECT_TRUE(eventually([&] { return gpu::Simulation::hangs() && has_updated_all(cluster); }));
  std::future<absl::Status> waited = std::async(std::launch::async, [&] { return client->wait(); });
  EXPECT_EQ(waited.wait_for(100ms), std::future_status::timeout) << "answered before the update";
  gpu::Simulation::release_hang();
  ASSERT_TRUE(waited.get().ok());
  EXPECT_EQ(flatten(*client)[7], initial_of(7) - gradient_of(0, 1, 7));
}

TEST_F(ClientGpu, TheMemoryOfALostWorkerStaysUntilTheUpdateHasReadIt) {
  gpu::Simulation::configure("devices=3,delay=50000");
  Cluster cluster({.worker_count = 2, .device = "gpu:1"});
  const std::unique_ptr<Client> stays = join(cluster.options(0), odd_schema());
  std::unique_ptr<Client> leaves = join(cluster.options(1), odd_schema());
  fill_initial(*stays);
  in_parallel(2, [&](uint32_t index) { ASSERT_TRUE((index == 0 ? *stays : *leaves).start().ok()); });
  fill_gradients(*leaves, 1, 1);
  leaves->exchange();
  ASSERT_TRUE(eventually([&] { return has_updated_all(cluster); }));
  leaves.reset();
  fill_gradients(*stays, 0, 1);
  stays->exchange();
  const absl::Status waited = stays->wait();
  ASSERT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(flatten(*stays)[7], initial_of(7) - gradient_of(1, 1, 7) - gradient_of(0, 1, 7));
}

TEST_F(ClientGpu, AChecksumIsThatOfTheVersionInTheMemoryOfTheWorker) {
  for (const char* const transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    gpu::Simulation::configure("devices=3,delay=500");
    Cluster cluster({.worker_count = 2, .transports = {transport}, .device = "gpu:1"});
    in_parallel(2, [&](uint32_t index) {
      ClientOptions options = cluster.options(index);
      options.transport.checksums = true;
      const std::unique_ptr<Client> client = join(options, odd_schema());
      if (index == 0) fill_initial(*client);
      ASSERT_TRUE(client->start().ok());
      for (uint64_t step = 1; step <= 20; ++step) {
        fill_gradients(*client, index, step);
        client->exchange();
        const absl::Status waited = client->wait();
        ASSERT_TRUE(waited.ok()) << waited;
      }
    });
  }
}

TEST_F(ClientGpu, ChecksumsOfWhatIsStaged) {
  Cluster cluster({.worker_count = 1, .transports = {"tcp"}});
  GpuWorker worker;
  ClientOptions options = cluster.options(0);
  options.transport.checksums = true;
  options.placement.gpu_transfers = {};
  worker.join(options);
  ASSERT_TRUE(worker.has_joined());
  fill_initial(worker.client());
  ASSERT_TRUE(worker.client().start().ok());
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_TRUE(worker.step(0, step).ok());
}

}  // namespace
}  // namespace gradrail::worker
