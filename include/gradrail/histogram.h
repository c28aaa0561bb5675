#pragma once

#include <array>
#include <cstdint>

#include "gradrail/export.h"

namespace gradrail {

/// Latencies in nanoseconds, counted in log-linear cells (16 a power of two: within 6.25 %), without allocation.
/// Threads  One owner; merge() joins the histograms of several.
class GRADRAIL_EXPORT Histogram {
 public:
  void record(int64_t value_ns);
  void merge(const Histogram& other);
  /// Takes away what `earlier`, a former state of this one, had: what is left was recorded since. Minimum and maximum
  /// stay those of all.
  void subtract(const Histogram& earlier);
  /// How many are less than 2^exponent, exactly.
  uint64_t count_below_power(int exponent) const;
  double sum_ns() const { return sum_ns_; }
  uint64_t count() const { return count_; }
  int64_t max_ns() const { return max_ns_; }
  int64_t min_ns() const { return count_ == 0 ? 0 : min_ns_; }
  double mean_ns() const { return count_ == 0 ? 0.0 : sum_ns_ / static_cast<double>(count_); }
  /// Middle of the cell that holds quantile q in [0, 1]; 0 when nothing was recorded.
  int64_t quantile_ns(double q) const;

 private:
  static constexpr int kCellsPerOctave = 16;
  std::array<uint64_t, 64 * kCellsPerOctave> cells_{};
  uint64_t count_ = 0;
  int64_t min_ns_ = INT64_MAX;
  int64_t max_ns_ = 0;
  double sum_ns_ = 0.0;
};

}  // namespace gradrail
