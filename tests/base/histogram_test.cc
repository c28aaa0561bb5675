#include "gradrail/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace gradrail {
namespace {

// A cell is at most 1/16 of its lower bound wide and its middle is reported: within half of that.
constexpr double kRelativeError = 1.0 / 32.0;

int64_t exact_quantile(const std::vector<int64_t>& sorted, double q) {
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

void expect_quantiles(std::vector<int64_t> values) {
  Histogram histogram;
  for (const int64_t value : values) histogram.record(value);
  std::sort(values.begin(), values.end());
  for (const double q : {0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto exact = static_cast<double>(exact_quantile(values, q));
    EXPECT_NEAR(static_cast<double>(histogram.quantile_ns(q)), exact, exact * kRelativeError + 0.5) << "quantile " << q;
  }
  EXPECT_EQ(histogram.count(), values.size());
  EXPECT_EQ(histogram.min_ns(), values.front());
  EXPECT_EQ(histogram.max_ns(), values.back());
}

TEST(Histogram, empty_is_all_zero) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.quantile_ns(0.5), 0);
  EXPECT_EQ(histogram.min_ns(), 0);
  EXPECT_EQ(histogram.max_ns(), 0);
  EXPECT_EQ(histogram.mean_ns(), 0.0);
}

TEST(Histogram, one_value_is_every_quantile) {
  for (const int64_t value : {int64_t{0}, int64_t{15}, int64_t{16}, int64_t{12'345}, INT64_MAX}) {
    Histogram histogram;
    histogram.record(value);
    for (const double q : {0.0, 0.5, 1.0}) EXPECT_EQ(histogram.quantile_ns(q), value);
  }
}

TEST(Histogram, quantiles_agree_with_sorted_values) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  std::vector<int64_t> small, uniform, heavy_tailed;
  for (int i = 0; i < 20'000; ++i) {
    small.push_back(static_cast<int64_t>(random.below(40)));
    uniform.push_back(static_cast<int64_t>(random.below(1'000'000)));
    heavy_tailed.push_back(static_cast<int64_t>(1000.0 * std::exp(2.0 * random.normal())));
  }
  expect_quantiles(small);
  expect_quantiles(uniform);
  expect_quantiles(heavy_tailed);
}

TEST(Histogram, powers_of_two_and_their_neighbours) {
  std::vector<int64_t> values;
  for (int bit = 0; bit < 62; ++bit) {
    for (const int64_t step : {-1, 0, 1}) values.push_back((int64_t{1} << bit) + step);
  }
  expect_quantiles(values);
}

TEST(Histogram, negative_counts_as_zero) {
  Histogram histogram;
  histogram.record(-5);
  EXPECT_EQ(histogram.count(), 1u);
  EXPECT_EQ(histogram.max_ns(), 0);
  EXPECT_EQ(histogram.quantile_ns(1.0), 0);
}

TEST(Histogram, merged_equals_recorded_together) {
  constexpr uint64_t kSeed = 8;
  Random random(kSeed);
  Histogram left, right, both;
  for (int i = 0; i < 5'000; ++i) {
    const auto value = static_cast<int64_t>(random.below(1 + random.below(1'000'000)));
    (i % 3 == 0 ? left : right).record(value);
    both.record(value);
  }
  left.merge(right);
  EXPECT_EQ(left.count(), both.count());
  EXPECT_EQ(left.min_ns(), both.min_ns());
  EXPECT_EQ(left.max_ns(), both.max_ns());
  EXPECT_NEAR(left.mean_ns(), both.mean_ns(), both.mean_ns() * 1e-12);
  for (const double q : {0.0, 0.1, 0.5, 0.99, 1.0}) EXPECT_EQ(left.quantile_ns(q), both.quantile_ns(q)) << kSeed;
}

TEST(Histogram, merging_an_empty_one_changes_nothing) {
  Histogram histogram, empty;
  histogram.record(100);
  histogram.merge(empty);
  EXPECT_EQ(histogram.min_ns(), 100);
  EXPECT_EQ(histogram.quantile_ns(0.5), 100);
}

TEST(Histogram, what_was_recorded_since_is_what_is_left) {
  Histogram histogram;
  for (int i = 0; i < 100; ++i) histogram.record(1'000'000);
  const Histogram earlier = histogram;
  for (int i = 0; i < 10; ++i) histogram.record(5'000);
  histogram.subtract(earlier);
  EXPECT_EQ(histogram.count(), 10u);
  EXPECT_EQ(histogram.sum_ns(), 50'000.0);
  EXPECT_NEAR(static_cast<double>(histogram.quantile_ns(0.99)), 5'000, 5'000 * kRelativeError);
}

TEST(Histogram, counts_below_powers_of_two_are_exact) {
  Histogram histogram;
  for (const int64_t value : {0, 3, 4, 4095, 4096, 4097, 1'000'000}) histogram.record(value);
  EXPECT_EQ(histogram.count_below_power(2), 2u);
  EXPECT_EQ(histogram.count_below_power(12), 4u);
  EXPECT_EQ(histogram.count_below_power(13), 6u);
  EXPECT_EQ(histogram.count_below_power(20), 7u);
}

}  // namespace
}  // namespace gradrail
