#include "bench/suites/exchange_run.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/status.h"
#include "fmt/format.h"

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

// A worker has gradients and parameters, the server parameters and the state of the optimizer.
TEST(ExchangeRun, ALoadThatMemoryCannotHoldIsRefused) {
  // In units of the kernel, KiB.
  const auto host = [](uint64_t kib) {
    return [kib](const std::string& path) {
      return path == "/proc/meminfo" ? fmt::format("MemAvailable: {} kB\n", kib) : std::string();
    };
  };
  const auto check = [&](uint64_t kib, uint32_t workers, OptimizerKind optimizer) {
    return check_memory({.bytes = 1000 * 1024, .workers = workers, .optimizer = optimizer}, "give a smaller model",
                        host(kib));
  };
  for (const auto& [least, workers, optimizer] :
       std::vector<std::tuple<uint64_t, uint32_t, OptimizerKind>>{{3000, 1, OptimizerKind::sgd},
                                                                  {9000, 4, OptimizerKind::sgd},
                                                                  {6000, 2, OptimizerKind::momentum},
                                                                  {7000, 2, OptimizerKind::adam}}) {
    EXPECT_TRUE(check(least, workers, optimizer).ok()) << least;
    EXPECT_TRUE(absl::IsResourceExhausted(check(least - 1, workers, optimizer))) << least;
  }
  EXPECT_EQ(
      message_of(check(2999, 1, OptimizerKind::sgd)),
      "gradients of 1024000 bytes: 1 worker and the server need at least 3072000 bytes of memory on this host, and "
      "3070976 are available (MemAvailable); give a smaller model");
  EXPECT_TRUE(message_of(check(8999, 4, OptimizerKind::sgd)).ends_with("; give a smaller model, or fewer workers"));
  EXPECT_TRUE(check_memory({.bytes = 1000}, "", [](const std::string&) { return ""; }).ok());
  // More than 64 bits have.
  EXPECT_FALSE(check_memory({.bytes = UINT64_MAX / 8, .workers = 256}, "", host(UINT64_MAX / 1024)).ok());
}

}  // namespace
}  // namespace gradrail::bench
