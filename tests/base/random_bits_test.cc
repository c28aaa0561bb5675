#include "base/random_bits.h"

#include <gtest/gtest.h>

#include <set>

namespace gradrail {
namespace {

TEST(RandomBits, GivesAsManyBytesAsAskedFor) {
  for (const size_t count : {0u, 1u, 16u, 257u, 100'000u}) EXPECT_EQ(random_bytes(count).size(), count);
}

TEST(RandomBits, EveryBitIsSometimesSetAndSometimesNot) {
  uint64_t ones = 0;
  uint64_t zeros = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t bits = random_bits();
    ones |= bits;
    zeros |= ~bits;
  }
  EXPECT_EQ(ones, UINT64_MAX);
  EXPECT_EQ(zeros, UINT64_MAX);
}

TEST(RandomBits, LongRunsAreFilledToTheEnd) {
  const std::string bytes = random_bytes(100'000);
  const std::set<char> tail(bytes.end() - 5000, bytes.end());
  EXPECT_GT(tail.size(), 200u);
}

}  // namespace
}  // namespace gradrail
