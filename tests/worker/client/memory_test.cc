// The binder of memory is called before the first touch: later it cannot choose the NUMA node any more.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

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

class ClientMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(ClientMemory, IsShownToTheBinderBeforeItsFirstTouch) {
  Watchdog watchdog;
  Cluster cluster({.shards_per_ps = 2, .worker_count = 1, .transports = {GetParam()}});
  std::vector<MemorySpan> placed;
  ClientOptions options = cluster.options(0);
  options.place_memory = [&, owner = std::this_thread::get_id()](const MemorySpan& memory) {
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

INSTANTIATE_TEST_SUITE_P(Over, ClientMemory, ::testing::Values("shm", "tcp"),
                         [](const auto& over) { return std::string(over.param); });

}  // namespace
}  // namespace gradrail::worker
