#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace gradrail {
namespace {

// The first numbers as they were when the class was written: a change would silently change every seeded run.
TEST(Random, numbers_of_a_seed_stay_what_they_were) {
  Random random(1);
  EXPECT_EQ(random.next(), 0xef75d62a19ba94edu);
  EXPECT_EQ(random.next(), 0x8e9490536375f270u);
  EXPECT_EQ(random.next(), 0xc05630b1c614195du);
  EXPECT_EQ(Random(1, 1).next(), 0x309714ec38d33b4cu);
  EXPECT_EQ(Random(0).next(), 0xfb5405f7bd79c540u);
  EXPECT_EQ(Random(2).below(1000), 70u);
  EXPECT_DOUBLE_EQ(Random(3).uniform(), 0.86965539941199244);
  EXPECT_NEAR(Random(4).normal(), 0.33154102010995806,
              1e-12);  // log and sqrt may differ in the last bit between libraries
}

// Chi-square: mean = degrees of freedom, deviation = sqrt(2 * degrees); 5 deviations never happen by chance.
TEST(Random, below_is_uniform) {
  constexpr uint64_t kSeed = 11;
  constexpr int kDraws = 200'000;
  for (const uint64_t bound : {uint64_t{2}, uint64_t{7}, uint64_t{100}, uint64_t{1000}}) {
    Random random(kSeed);
    std::vector<int> counts(bound);
    for (int i = 0; i < kDraws; ++i) ++counts.at(random.below(bound));
    const double expected = kDraws / static_cast<double>(bound);
    double chi_square = 0.0;
    for (const int count : counts) chi_square += (count - expected) * (count - expected) / expected;
    const auto degrees = static_cast<double>(bound - 1);
    EXPECT_NEAR(chi_square, degrees, 5.0 * std::sqrt(2.0 * degrees)) << "bound " << bound << " seed " << kSeed;
  }
}

// With next() % bound the lower half of this range would come twice as often as the upper.
TEST(Random, below_has_no_modulo_bias) {
  constexpr uint64_t kSeed = 12;
  constexpr uint64_t kBound = (uint64_t{1} << 63) + (uint64_t{1} << 62);
  constexpr int kDraws = 100'000;
  Random random(kSeed);
  int low = 0;
  for (int i = 0; i < kDraws; ++i) low += random.below(kBound) < kBound / 2 ? 1 : 0;
  EXPECT_NEAR(low, kDraws / 2.0, 5 * std::sqrt(kDraws / 4.0)) << "seed " << kSeed;
}

TEST(Random, below_one_is_zero) {
  Random random(13);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.below(1), 0u);
}

TEST(Random, normal_has_its_moments) {
  constexpr uint64_t kSeed = 15;
  constexpr int kDraws = 200'000;
  Random random(kSeed);
  double sum = 0.0, squares = 0.0, fourths = 0.0;
  int beyond_two = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = random.normal();
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
    beyond_two += std::abs(value) > 2.0 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 5.0 / std::sqrt(kDraws)) << "seed " << kSeed;
  EXPECT_NEAR(squares / kDraws, 1.0, 5.0 * std::sqrt(2.0 / kDraws)) << "seed " << kSeed;
  EXPECT_NEAR(fourths / kDraws, 3.0, 5.0 * std::sqrt(96.0 / kDraws)) << "seed " << kSeed;
  EXPECT_NEAR(beyond_two / static_cast<double>(kDraws), 0.0455, 0.003) << "seed " << kSeed;
}

}  // namespace
}  // namespace gradrail
