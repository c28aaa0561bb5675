// GPU memory and paths that fail: a run moves from a network device with GPU access to one without, and back.
#include "base/random.h"
#include "fmt/format.h"
#include "tests/gpu/simulation.h"
#include "tests/worker/client/cut.h"
#include "tests/worker/client/gpu/gpu_worker.h"

namespace gradrail::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ClientGpuMove : public ::testing::Test {
 protected:
  ClientGpuMove() {
    gpu::Simulation::configure("devices=2");
    find_simulated_nic();
  }
  const Watchdog watchdog_;
};

std::vector<float> expected_after(uint64_t steps) {
  std::vector<float> values(odd_elements());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = initial_of(i);
    for (uint64_t step = 1; step <= steps; ++step) values[i] -= gradient_of(0, step, i);
  }
  return values;
}

/// The sockets of simnic are cut. The next path is shm, which moves host memory only.
TEST_F(ClientGpuMove, FromDirectToStagedAndBack) {
  Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {"simnic", "shm"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"simnic", "shm"};
  options.transport.failback = 50ms;
  GpuWorker worker;
  worker.join(options);
  ASSERT_TRUE(worker.has_joined());
  Client& client = worker.client();
  fill_initial(client);
  ASSERT_TRUE(client.start().ok());
  uint64_t step = 0;
  const auto one_step = [&] {
    const absl::Status done = worker.step(0, ++step);
    EXPECT_TRUE(done.ok()) << done;
    return done.ok() && worker.parameters() == expected_after(step);
  };
  for (uint64_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(one_step());
    EXPECT_THAT(client.device().text(), StartsWith("dmabuf"));
    cut_one("tcp", cluster.spec());
    ASSERT_TRUE(one_step());
    EXPECT_THAT(client.device().text(), HasSubstr("staged through pinned host memory (ipc: "));
    EXPECT_THAT(client.device().text(), HasSubstr("dmabuf: shm moves host memory only"));
    ASSERT_TRUE(eventually([&] { return !one_step() || client.statistics().now().returns == 2 * round; }));
    EXPECT_THAT(client.device().text(), StartsWith("dmabuf"));
  }
  EXPECT_EQ(worker.parameters(), expected_after(step));
  std::vector<std::string> paths;
  for (const ClientStats::PathBytes& bytes : client.statistics().now().path_bytes) paths.push_back(bytes.path);
  EXPECT_THAT(paths, ::testing::UnorderedElementsAre("tcp gpu-direct(dmabuf)", "shm staged"));
}

/// Cuts at random moments: every bucket is in one of its states, on its way out of the GPU or back.
TEST_F(ClientGpuMove, RunUnderCutsEqualsTheUndisturbedOne) {
  const auto run = [&](bool disturbed, std::vector<std::string> order, PushFormat push) {
    Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = order});
    std::vector<float> result[2];
    std::atomic<uint64_t> moves = 0, started = 0, steps = 0;
    std::atomic<bool> done = false;
    std::thread cutter([&] {
      Random random(11);
      uint64_t next = 0;
      while (disturbed && !done) {
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(2000)));
        if (started < 2 || steps < next) continue;
        cut_data_connections("tcp", cluster.spec());
        next = steps + 5 + random.below(20);
      }
    });
    in_parallel(2, [&](uint32_t index) {
      ClientOptions options = cluster.options(index);
      options.transport.order = order;
      options.mode.kind = ModeKind::sync;
      options.bucket_bytes = 1024;
      options.compression.push = push;
      options.transport.failback = 5ms;
      GpuWorker worker(static_cast<int>(index));
      worker.set_scale(0.3f);  // bf16 rounds the gradients
      worker.join(options);
      ASSERT_TRUE(worker.has_joined());
      if (index == 0) fill_initial(worker.client());
      ASSERT_TRUE(worker.client().start().ok());
      ++started;
      for (uint64_t step = 1; step <= 150; ++step) {
        const absl::Status waited = worker.step(index, step);
        ASSERT_TRUE(waited.ok()) << "worker " << index << " step " << step << ": " << waited;
        ++steps;
      }
      result[index] = worker.parameters();
      moves += worker.client().statistics().now().moves;
      EXPECT_TRUE(worker.client().barriers().wait("done").ok());
    });
    done = true;
    cutter.join();
    EXPECT_EQ(result[0], result[1]);
    EXPECT_EQ(moves > 0, disturbed);
    return result[0];
  };
  // Each path and each format once: ClientMove has the formats over each transport.
  const std::pair<PushFormat, std::vector<std::string>> kRuns[] = {
      {PushFormat::fp32, {"simnic", "shm"}}, {PushFormat::bf16, {"simnic"}}, {PushFormat::int8, {"tcp"}}};
  for (const auto& [push, order] : kRuns) EXPECT_EQ(run(true, order, push), run(false, {"shm"}, push));
}

/// A forced transfer stays forced: the run ends and does not stage.
TEST_F(ClientGpuMove, ForcedDirectDoesNotStage) {
  Cluster cluster({.worker_count = 1, .transports = {"simnic", "shm"}});
  ClientOptions options = cluster.options(0);
  options.transport.order = {"shm", "simnic"};
  options.placement.gpu_transfers = {GpuTransfer::dma_buf};
  options.placement.require_device = true;
  GpuWorker worker;
  worker.join(options);
  ASSERT_TRUE(worker.has_joined());
  EXPECT_THAT(worker.client().statistics().now().paths[0],
              HasSubstr("tcp gpu-direct(dmabuf) (shm refused: gradients cannot leave the GPU"));
  ASSERT_TRUE(worker.client().start().ok());
  cut_one("tcp", cluster.spec());
  ASSERT_TRUE(worker.step(0, 1).ok());
  EXPECT_THAT(worker.client().device().text(), StartsWith("dmabuf"));
}

}  // namespace
}  // namespace gradrail::worker
