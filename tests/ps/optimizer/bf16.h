#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace gradrail::ps {

inline float widened(uint16_t packed) { return std::bit_cast<float>(uint32_t{packed} << 16); }

/// The nearer one of the two neighbors in bf16, by distances in double; of two equally near ones, the even one.
inline uint16_t nearest(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // toward zero
  if (std::isinf(value)) return below;
  const auto above = static_cast<uint16_t>(below + 1);
  // The next power of two stands for infinity, as for all formats of IEEE 754.
  const double far = std::isinf(widened(above)) ? std::copysign(0x1p128, value) : double{widened(above)};
  const double to_below = std::abs(double{value} - widened(below));
  const double to_above = std::abs(double{value} - far);
  if (to_below != to_above) return to_below < to_above ? below : above;
  return below % 2 == 0 ? below : above;
}

}  // namespace gradrail::ps
