#include "bench/suites/exchange_run.h"

#include <gtest/gtest.h>

namespace gradrail::bench {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);
// Five exchanges come before the timed ones.
constexpr int kFirst = 5;

TEST(ExchangeRun, TheTimeLimitCoversALongReplay) {
  const Duration limit = time_limit({.seconds = 0.1, .layers = {{.elements = 4, .ready_us = 6e6}}});
  EXPECT_GT(limit, (kFirst + 5) * 6 * kSecond);
}

TEST(ExchangeRun, TheTimeLimitCoversTheIterations) {
  const std::vector<ExchangeLoad::Layer> layers = {{.elements = 4, .ready_us = 1e6}};
  EXPECT_GT(time_limit({.iterations = 100, .warmup = 50, .layers = layers}), (kFirst + 150) * kSecond);
  EXPECT_GT(time_limit({.bytes = 1 << 30, .iterations = 100}), 100 * kSecond);
  EXPECT_GT(time_limit({.bytes = 1 << 30, .iterations = UINT64_MAX}), Duration::zero());
}

TEST(ExchangeRun, TheTimeLimitOfAShortRunFindsAHang) {
  EXPECT_LT(time_limit({.bytes = 1 << 20, .seconds = 0.1}), 60 * kSecond);
}

}  // namespace
}  // namespace gradrail::bench
