// The protocol is on the path of every exchange: in async it must not allocate. Counts all allocations of this program.
#include <cstdint>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "ps/shard/shard_protocol.h"

namespace {

uint64_t allocation_count = 0;

}  // namespace

void* operator new(size_t bytes) {
  ++allocation_count;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Inlined alone, g++ would warn of memory that operator new has not allocated.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace gradrail::ps {
namespace {

constexpr uint64_t kIncarnation = 1;

uint64_t allocations_of(ShardProtocol& protocol, Actions& actions, uint32_t worker_count, uint64_t first_step,
                        uint64_t last_step) {
  const uint64_t before = allocation_count;
  for (uint64_t step = first_step; step <= last_step; ++step) {
    for (WorkerIndex worker = 0; worker < worker_count; ++worker) {
      actions.clear();
      protocol.on_arrival({worker, kIncarnation, ArrivalKind::push, 0, step, step - 1}, actions);
    }
  }
  return allocation_count - before;
}

TEST(ProtocolAllocation, NoneInAsyncOnceActionsHaveTheirRoom) {
  constexpr uint32_t kWorkers = 4;
  ShardProtocol protocol({ModeKind::async}, 1, true, 0);
  for (WorkerIndex worker = 0; worker < kWorkers; ++worker) protocol.add_worker(worker, kIncarnation);
  Actions actions;
  EXPECT_GT(allocations_of(protocol, actions, kWorkers, 1, 1), 0u);  // else the counter does not count
  EXPECT_EQ(allocations_of(protocol, actions, kWorkers, 2, 100), 0u);
  EXPECT_EQ(protocol.version(0), 100u * kWorkers);
}

TEST(ProtocolAllocation, NoneInSyncUpToEightWorkers) {
  constexpr uint32_t kWorkers = 8;
  ShardProtocol protocol({ModeKind::sync, kWorkers}, 1, true, 0);
  for (WorkerIndex worker = 0; worker < kWorkers; ++worker) protocol.add_worker(worker, kIncarnation);
  Actions actions;
  allocations_of(protocol, actions, kWorkers, 1, 1);
  EXPECT_EQ(allocations_of(protocol, actions, kWorkers, 2, 100), 0u);
  EXPECT_EQ(protocol.version(0), 100u);
}

}  // namespace
}  // namespace gradrail::ps
