#include "worker/client/session/heartbeats.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <vector>

namespace gradrail::worker {
namespace {

using namespace std::chrono_literals;

bool comes_true(const std::function<bool()>& condition) {
  for (const TimePoint deadline = Clock::now() + 8s; !condition() && Clock::now() < deadline;)
    std::this_thread::sleep_for(1ms);
  return condition();
}

TEST(Heartbeats, OneThreadServesAll) {
  Heartbeats heartbeats;
  ASSERT_TRUE(heartbeats.start().ok());
  Mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> turns = 0;
  std::vector<uint64_t> numbers;
  for (int i = 0; i < 50; ++i) {
    numbers.push_back(heartbeats.add([&] {
      const MutexLock lock(mutex);
      threads.insert(std::this_thread::get_id());
      ++turns;
      return TimePoint::max();
    }));
  }
  EXPECT_EQ(turns, 0) << "the first turn follows wake()";
  for (const uint64_t number : numbers) heartbeats.wake(number);
  EXPECT_TRUE(comes_true([&] { return turns == 50; })) << turns;
  for (const uint64_t number : numbers) heartbeats.remove(number);
  EXPECT_EQ(threads.size(), 1U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(Heartbeats, ATurnComesAtItsTime) {
  Heartbeats heartbeats;
  ASSERT_TRUE(heartbeats.start().ok());
  std::atomic<int> turns = 0;
  const TimePoint begin = Clock::now();
  const uint64_t number = heartbeats.add([&] { return Clock::now() + (++turns < 3 ? 30ms : 1h); });
  heartbeats.wake(number);
  EXPECT_TRUE(comes_true([&] { return turns == 3; })) << turns;
  EXPECT_GE(Clock::now() - begin, 60ms);
  heartbeats.remove(number);
}

TEST(Heartbeats, RemoveWaitsForATurn) {
  Heartbeats heartbeats;
  ASSERT_TRUE(heartbeats.start().ok());
  std::atomic<bool> begun = false, ended = false;
  const uint64_t number = heartbeats.add([&] {
    begun = true;
    std::this_thread::sleep_for(50ms);
    ended = true;
    return TimePoint::max();
  });
  heartbeats.wake(number);
  ASSERT_TRUE(comes_true([&] { return begun.load(); }));
  heartbeats.remove(number);
  EXPECT_TRUE(ended);
  heartbeats.wake(number);  // ignored
}

TEST(Heartbeats, AWakeDuringATurnIsNotLost) {
  Heartbeats heartbeats;
  ASSERT_TRUE(heartbeats.start().ok());
  std::atomic<int> turns = 0;
  std::atomic<bool> woken = false;
  const uint64_t number = heartbeats.add([&] {
    ++turns;
    comes_true([&] { return woken.load(); });
    return TimePoint::max();
  });
  heartbeats.wake(number);
  ASSERT_TRUE(comes_true([&] { return turns == 1; }));
  heartbeats.wake(number);
  woken = true;
  EXPECT_TRUE(comes_true([&] { return turns == 2; })) << turns;
  heartbeats.remove(number);
}

}  // namespace
}  // namespace gradrail::worker
