#pragma once

#include <cstdint>

namespace gradrail {

/// xoshiro256** seeded through splitmix64: the same numbers from the same seed with every compiler and library.
/// Threads  Not shared: one owner.
/// Source   Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2018.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0);

  uint64_t next();
  /// Uniform in [0, bound), without modulo bias; bound > 0.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1).
  double uniform();
  /// N(0, 1) by the polar method.
  double normal();

 private:
  uint64_t state_[4];
  double spare_normal_ = 0.0;
  bool has_spare_ = false;
};

}  // namespace gradrail
