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

/// Number of elements in one selection of topk: an index has 12 bits, and a chunk fits into an L1 cache. Chunks begin
/// with the bucket; the last one may be shorter.
///
///   a bucket in topk: [elements of chunk 0][elements of chunk 1]…
///
/// A chunk has kept_in_chunk() elements of 32 bits, in ascending order. The lower half of an element is its value in
/// bf16. The upper half is its index in the chunk. The selection takes the largest magnitudes, at equal magnitudes the
/// lower index. NaN is above infinity.
inline constexpr size_t kTopkChunk = 4096;

/// Elements of a chunk of `count` elements that a push in topk carries.
constexpr uint64_t kept_in_chunk(uint64_t count, PushFormat format) {
  return (count * format.thousandths + 999) / 1000;
}

/// Shards and buckets begin at multiples of so many elements. Each cut of a model then has the same blocks and chunks,
/// and a bucket begins with a cache line.
constexpr uint64_t cut_elements(PushFormat format) {
  switch (format.kind) {
    case PushFormat::int8:
    case PushFormat::int4:
      return kScaleBlock;
    case PushFormat::topk:
      return kTopkChunk;
    default:
      return 64 / sizeof(float);
  }
}

/// A GPU packs gradients in these formats, and parameters on one take them.
constexpr bool is_for_gpus(PushFormat format) { return format.kind != PushFormat::topk; }

/// Bytes of a bucket of `count` elements.
constexpr uint64_t packed_bytes(uint64_t count, PushFormat format) {
  const uint64_t scale_bytes = (count + kScaleBlock - 1) / kScaleBlock * 2;
  switch (format.kind) {
    case PushFormat::fp32:
      break;
    case PushFormat::bf16:
      return count * 2;
    case PushFormat::int8:
      return scale_bytes + count;
    case PushFormat::int4:
      return scale_bytes + (count + 1) / 2;
    case PushFormat::topk:
      return sizeof(uint32_t) *
             (count / kTopkChunk * kept_in_chunk(kTopkChunk, format) + kept_in_chunk(count % kTopkChunk, format));
  }
  return count * sizeof(float);
}

/// Distance in bytes from the place of an element to that of the next one, where buckets are adjacent. A short block in
/// int8 has more bytes than elements, so that such buckets keep the places that they have in fp32. Buckets in topk keep
/// them too.
constexpr uint64_t place_bytes(PushFormat format) { return format == PushFormat::bf16 ? 2 : sizeof(float); }

}  // namespace gradrail::ps
