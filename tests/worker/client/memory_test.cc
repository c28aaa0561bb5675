// The memory of parameters and gradients. Its binder is called before the first touch: later it cannot choose the NUMA
// node any more.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "ps/protocol/push_format.h"
#include "tests/worker/client/cluster.h"

namespace gradrail::worker {
namespace {

/// Pages of it that exist already.
size_t touched_pages(const MemorySpan& memory) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present((memory.bytes + page - 1) / page);
  EXPECT_EQ(mincore(memory.data, memory.bytes, present.data()), 0);
  return static_cast<size_t>(std::count_if(present.begin(), present.end(), [](unsigned char p) { return p & 1; }));
}

std::vector<float> flatten_gradients(Client& client) {
  std::vector<float> all;
  for (size_t i = 0; i < client.schema().size(); ++i)
    all.insert(all.end(), client.gradients(i).begin(), client.gradients(i).end());
  return all;
}

class ClientMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(ClientMemory, IsShownToTheBinderBeforeItsFirstTouch) {
  Watchdog watchdog;
  Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {GetParam()}});
  std::vector<MemorySpan> placed;
  ClientOptions options = cluster.options(0);
  options.placement.place_memory = [&, owner = std::this_thread::get_id()](const MemorySpan& memory) {
    EXPECT_EQ(std::this_thread::get_id(), owner);
    EXPECT_EQ(touched_pages(memory), 0u);
    placed.push_back(memory);
  };
  const std::unique_ptr<Client> client = join(options, odd_schema());
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(placed.size(), 2u + 2u * 2u) << "parameters and gradients; headers and returns of each shard's path";
  for (const MemorySpan& memory : client->memory()) {
    const auto same = [&](const MemorySpan& other) { return other.data == memory.data && other.bytes == memory.bytes; };
    EXPECT_EQ(std::count_if(placed.begin(), placed.end(), same), 1);
  }
  fill_initial(*client);
  ASSERT_TRUE(client->start().ok());
  EXPECT_GT(touched_pages(client->memory()[0]), 0u);
  EXPECT_TRUE(client->leave().ok());
}

/// The gradients of the chief, and of each worker that waited for initial values, began as its parameters. Tensors that
/// the program did not write, or to which it added, were pushed with them.
TEST_P(ClientMemory, OfGradientsBeginsWithZerosAndIsTheTrainersAlone) {
  Watchdog watchdog;
  for (const auto& [mode, bound] : {std::pair(ModeKind::async, 0u), std::pair(ModeKind::sync, 0u),
                                    std::pair(ModeKind::ssp, 1u), std::pair(ModeKind::quorum, 2u)}) {
    for (const PushFormat push : {PushFormat::fp32, PushFormat::bf16}) {
      SCOPED_TRACE(::testing::Message() << "mode " << static_cast<int>(mode) << ", " << push_format_name(push));
      Cluster cluster({.shards_per_ps = 2, .worker_count = 2, .transports = {GetParam()}});
      std::unique_ptr<Client> clients[2];
      for (uint32_t task = 0; task < 2; ++task) {
        ClientOptions options = cluster.options(task, mode);
        options.mode.bound = bound;
        set_push(options, push);
        clients[task] = join(options, odd_schema());
        ASSERT_NE(clients[task], nullptr);
        fill_initial(*clients[task]);
      }
      // Worker 0 has written a gradient before its start; worker 1 waits for initial values.
      clients[0]->gradients(0)[0] = 8.0f;
      std::vector<float> expected[2];
      for (uint32_t task = 0; task < 2; ++task) expected[task].assign(flatten(*clients[task]).size(), 0.0f);
      expected[0][0] = 8.0f;
      std::thread waits([&] { EXPECT_TRUE(clients[1]->start().ok()); });
      EXPECT_TRUE(clients[0]->start().ok());
      waits.join();
      const std::vector<float> initial = flatten(*clients[0]);
      for (uint32_t task = 0; task < 2; ++task) EXPECT_EQ(flatten_gradients(*clients[task]), expected[task]);
      for (int step = 0; step < 3; ++step) {
        in_parallel(2, [&](uint32_t task) {
          clients[task]->gradients(0)[1] += 2.0f;
          expected[task][1] += 2.0f;
          clients[task]->exchange();
          EXPECT_TRUE(clients[task]->wait().ok());
        });
        for (uint32_t task = 0; task < 2; ++task) EXPECT_EQ(flatten_gradients(*clients[task]), expected[task]);
      }
      EXPECT_TRUE(clients[0]->pull().ok());
      const std::vector<float> reached = flatten(*clients[0]);
      EXPECT_NE(reached[1], initial[1]);
      EXPECT_THAT(absl::MakeConstSpan(reached).subspan(2),
                  ::testing::ElementsAreArray(absl::MakeConstSpan(initial).subspan(2)));
      EXPECT_TRUE(clients[0]->leave().ok() && clients[1]->leave().ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Over, ClientMemory, ::testing::Values("shm", "tcp"),
                         [](const auto& over) { return std::string(over.param); });

}  // namespace
}  // namespace gradrail::worker
