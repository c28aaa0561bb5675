#include "bench/driver/memory_speed.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/clock.h"

namespace gradrail::bench {
namespace {

/// Keeps the compiler from removing a result that is never read.
void keep(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

double best_gb_per_s(double seconds, double bytes, const std::function<void()>& pass) {
  double best = 0.0;
  const TimePoint start = Clock::now();
  // The best pass: a bound must not include what other processes took.
  // Three at least: the first pass finds cold caches.
  for (int passes = 0; passes < 3 || seconds_since(start) < seconds; ++passes) {
    const TimePoint begin = Clock::now();
    pass();
    best = std::max(best, bytes / static_cast<double>(std::max<int64_t>(nanoseconds_since(begin), 1)));
  }
  return best;
}

}  // namespace

double MemorySpeed::best() const { return std::max({copy_gb_per_s, triad_gb_per_s, scale_gb_per_s}); }

MemoryProbe::MemoryProbe(size_t bytes) {
  // Three arrays together have the bytes of the working set that is compared.
  const size_t count = std::max<size_t>(bytes / sizeof(float) / 3, 16);
  a_.assign(count, 1.0f);
  b_.assign(count, 2.0f);
  c_.assign(count, 3.0f);
}

MemorySpeed MemoryProbe::measure(double seconds) {
  const auto bytes = static_cast<double>(a_.size() * sizeof(float));
  // Local pointers are faster than those of std::vector, which the compiler must expect to change.
  float* const __restrict a = a_.data();
  const float* const __restrict b = b_.data();
  const float* const __restrict c = c_.data();
  const size_t count = a_.size();
  MemorySpeed speed;
  speed.copy_gb_per_s = best_gb_per_s(seconds / 3, 2 * bytes, [=] {
    std::memcpy(a, b, count * sizeof(float));
    keep(a);
  });
  speed.triad_gb_per_s = best_gb_per_s(seconds / 3, 3 * bytes, [=] {
    for (size_t i = 0; i < count; ++i) a[i] = b[i] + 0.5f * c[i];
    keep(a);
  });
  speed.scale_gb_per_s = best_gb_per_s(seconds / 3, 2 * bytes, [=] {
    // The factor is less than 1, so that no value overflows. Subnormal numbers, which are slow, appear after 87,000
    // passes or later.
    for (size_t i = 0; i < count; ++i) a[i] *= 0.999f;
    keep(a);
  });
  return speed;
}

}  // namespace gradrail::bench
