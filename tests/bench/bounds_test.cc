#include <gtest/gtest.h>

#include <algorithm>

#include "bench/peers/peers.h"

namespace gradrail::bench {
namespace {

constexpr uint64_t kLargestExact = 1 << 24;

TEST(Bounds, CountsWrongValues) {
  const float parameters[] = {-3.0f, -2.0f, -3.0f};
  EXPECT_EQ(count_wrong(parameters, 3, 3), 1u);
}

TEST(Bounds, MoreUpdatesThanFp32Counts) {
  float parameter = -static_cast<float>(kLargestExact - 1);
  const float gradient = 1.0f;
  for (uint64_t update = kLargestExact; update < kLargestExact + 4; ++update) {
    apply_sgd(&parameter, &gradient, 1, update);
    EXPECT_EQ(count_wrong(&parameter, 1, update), 0u) << update;
  }
  EXPECT_EQ(count_wrong(&parameter, 1, kLargestExact - 1), 1u);
}

TEST(Bounds, ExchangesOfAPeerAreVerified) {
  const PeerLoad load = {.bytes = 2 * sizeof(float), .seconds = 0.001, .touch = true};
  float server[2] = {};
  uint64_t updates = 0;
  const auto exchange = [&](const float* gradient, float* parameters) {
    apply_sgd(server, gradient, 2, ++updates);
    std::copy_n(server, 2, parameters);
    return true;
  };
  EXPECT_EQ(measure_exchanges(load, exchange).wrong, 0u);
  // The server starts from another value than the worker expects.
  EXPECT_EQ(measure_exchanges(load, exchange).wrong, 2u);
  EXPECT_EQ(measure_exchanges(load, [](const float*, float*) { return false; }).failed, "connection broke");
}

TEST(Bounds, ArgumentsOfAPeer) {
  const auto parse = [](std::vector<const char*> values) {
    return peer_load_from(static_cast<int>(values.size()), const_cast<char**>(values.data()));
  };
  const std::optional<PeerLoad> load = parse({"peer", "4K", "0.5", "1", "tcp"});
  ASSERT_TRUE(load);
  EXPECT_EQ(load->bytes, 4096u);
  EXPECT_EQ(load->seconds, 0.5);
  EXPECT_TRUE(load->touch);
  EXPECT_FALSE(parse({"peer", "4K", "0.5"}));
  EXPECT_FALSE(parse({"peer", "x", "0.5", "1"}));
  EXPECT_FALSE(parse({"peer", "4K", "soon", "1"}));
  EXPECT_FALSE(parse({"peer", "4K", "0.5", "yes"}));
}

}  // namespace
}  // namespace gradrail::bench
