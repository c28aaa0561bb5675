#pragma once

#include <cstddef>
#include <cstdint>

#include "ps/protocol/mode.h"

namespace gradrail::ps {

/// Elements that share a scale in int8 and int4. Blocks begin with the bucket; the last one may be shorter.
///
///   a bucket in int8 or int4: [scale, bf16 × blocks][codes of block 0][codes of block 1]…
///   int8: a byte for each element. int4: a byte for two. In a block of n elements, the lower half of byte j has
///   the code of element j. The upper half has that of element j + ⌈n/2⌉.
///
/// An element is code × scale. A block with NaN or infinity has a scale with a minus sign. In it the codes 127, -127
/// and -128 (int4: 7, -7, -8) are infinity, minus infinity and NaN, and the others are code × |scale|.
inline constexpr size_t kScaleBlock = 64;

/// Shards and buckets begin at multiples of kScaleBlock elements, so that each cut of a model has the same blocks.
constexpr bool has_scales(PushFormat format) { return format == PushFormat::int8 || format == PushFormat::int4; }

/// Bytes of a bucket of `count` elements.
constexpr uint64_t packed_bytes(uint64_t count, PushFormat format) {
  const uint64_t scale_bytes = (count + kScaleBlock - 1) / kScaleBlock * 2;
  switch (format) {
    case PushFormat::fp32:
      break;
    case PushFormat::bf16:
    case PushFormat::fp16:
      return count * 2;
    case PushFormat::int8:
      return scale_bytes + count;
    case PushFormat::int4:
      return scale_bytes + (count + 1) / 2;
  }
  return count * sizeof(float);
}

/// Bytes from the place of an element to that of the next one, where buckets lie behind each other. A short block in
/// int8 has more bytes than elements, so that such buckets keep the places that they have in fp32.
constexpr uint64_t place_bytes(PushFormat format) {
  return format == PushFormat::bf16 || format == PushFormat::fp16 ? 2 : sizeof(float);
}

}  // namespace gradrail::ps
