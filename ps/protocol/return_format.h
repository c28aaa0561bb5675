#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ps/protocol/exchange_layout.h"

namespace gradrail::ps {

/// Elements of a bucket that share a mask in a delta.
inline constexpr size_t kMaskBlock = 64;

// The packed parameters of a bucket of `count` elements, in bf16 and delta:
//
//   whole: [bf16 × count]
//   delta: [mask, 64 bits × ⌈count/64⌉][bf16 × bits that are set]
//
// Bit j of mask i is set where element 64·i + j has changed since the answer before. The new elements follow in their
// order. A mask costs an element one bit of its 16, so that a delta is smaller where less than 15 of 16 elements
// change. Else the answer is whole. The first answer to a push over a path is whole as well. The shard keeps elements
// and the times of their changes, 4 bytes for an element (ReturnedElements).

/// Bytes of a whole bucket. A shorter one is a delta.
constexpr uint64_t whole_return_bytes(uint64_t count) { return count * sizeof(uint16_t); }

constexpr uint64_t mask_bytes(uint64_t count) { return (count + kMaskBlock - 1) / kMaskBlock * sizeof(uint64_t); }

/// Byte of the return region at which the packed parameters of a bucket begin. `offset`: of its first element in the
/// shard. The masks and all elements of a bucket have room, so that no delta leads out of the region.
constexpr uint64_t return_payload_at(uint32_t bucket_count, uint32_t bucket, uint64_t offset) {
  const uint64_t before = whole_return_bytes(offset) + mask_bytes(offset);
  return bucket_count * sizeof(ReturnHeader) + before + bucket * kMaskBlock;
}

/// Bytes of the return region of a shard. A decoder may read a vector behind the last element.
constexpr uint64_t return_region_bytes(uint32_t bucket_count, uint64_t elements, ReturnFormat format) {
  const uint64_t headers = bucket_count * sizeof(ReturnHeader);
  const uint64_t all =
      format == ReturnFormat::fp32 ? headers : return_payload_at(bucket_count, bucket_count, elements) + kMaskBlock;
  return std::max<uint64_t>(all, kCheckBytes);
}

}  // namespace gradrail::ps
