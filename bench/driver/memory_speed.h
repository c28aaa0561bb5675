#pragma once

#include <cstddef>
#include <vector>

namespace gradrail::bench {

/// Speed of memory for one thread, or of the cache that holds a working set of this size: the bound of an update.
struct MemorySpeed {
  double copy_gb_per_s = 0.0;   ///< memcpy: each byte read once and written once
  double triad_gb_per_s = 0.0;  ///< a[i] = b[i] + s * c[i]: three arrays, as STREAM counts
  double scale_gb_per_s = 0.0;  ///< a[i] *= s in place: read and written
  double best() const;
};

/// Loops over arrays that together hold `bytes`, for about `seconds` each; the fastest pass counts, as in STREAM.
/// Source  J. D. McCalpin, STREAM: Sustainable Memory Bandwidth in High Performance Computers.
class MemoryProbe {
 public:
  explicit MemoryProbe(size_t bytes);
  MemorySpeed measure(double seconds);

 private:
  std::vector<float> a_, b_, c_;
};

}  // namespace gradrail::bench
