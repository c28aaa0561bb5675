#include "gradrail/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gradrail {
namespace {

constexpr int kLinearBits = 4;  // 16 cells a power of two

size_t cell_of(uint64_t value) {
  // Values below 16 have a cell each. Larger ones keep their five highest bits; the first of these is always 1.
  if (value < 16) return value;
  const int shift = std::bit_width(value) - 1 - kLinearBits;
  return static_cast<size_t>(shift + 1) * 16 + ((value >> shift) & 15);
}

int64_t middle_of(size_t cell) {
  if (cell < 16) return static_cast<int64_t>(cell);
  const int shift = static_cast<int>(cell / 16) - 1;
  const uint64_t low = (16 + cell % 16) << shift;
  return static_cast<int64_t>(low + (uint64_t{1} << shift) / 2);
}

}  // namespace

void Histogram::record(int64_t value_ns) {
  const int64_t value = std::max<int64_t>(value_ns, 0);
  ++cells_[cell_of(static_cast<uint64_t>(value))];
  ++count_;
  min_ns_ = std::min(min_ns_, value);
  max_ns_ = std::max(max_ns_, value);
  sum_ns_ += static_cast<double>(value);
}

void Histogram::merge(const Histogram& other) {
  for (size_t i = 0; i < cells_.size(); ++i) cells_[i] += other.cells_[i];
  count_ += other.count_;
  min_ns_ = std::min(min_ns_, other.min_ns_);
  max_ns_ = std::max(max_ns_, other.max_ns_);
  sum_ns_ += other.sum_ns_;
}

void Histogram::subtract(const Histogram& earlier) {
  for (size_t i = 0; i < cells_.size(); ++i) cells_[i] -= earlier.cells_[i];
  count_ -= earlier.count_;
  sum_ns_ -= earlier.sum_ns_;
}

uint64_t Histogram::count_below_power(int exponent) const {
  uint64_t count = 0;
  // Each power of two begins a cell, so no cell contains the bound. An exponent beyond the last cell counts all.
  const size_t end = std::min(cell_of(uint64_t{1} << exponent), cells_.size());
  for (size_t i = 0; i < end; ++i) count += cells_[i];
  return count;
}

int64_t Histogram::quantile_ns(double q) const {
  if (count_ == 0) return 0;
  const auto wanted = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(q * static_cast<double>(count_))));
  uint64_t seen = 0;
  for (size_t i = 0; i < cells_.size(); ++i) {
    seen += cells_[i];
    // The middle of a cell may be outside the recorded values: the quantile of one sample is that sample.
    if (seen >= wanted) return std::clamp(middle_of(i), min_ns_, max_ns_);
  }
  return max_ns_;
}

}  // namespace gradrail
