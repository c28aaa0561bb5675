#include "ps/shard/return_encoder.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/return_format.h"

namespace gradrail::ps {

ReturnEncoder::ReturnEncoder(ReturnFormat format, uint32_t bucket_count, uint64_t elements)
    : format_(format), buckets_(bucket_count), held_(format == ReturnFormat::delta ? elements : 0) {
  GRADRAIL_CHECK(format != ReturnFormat::fp32);
}

void ReturnEncoder::on_arrival(const SlotHeader& header) {
  GRADRAIL_CHECK(header.bucket < buckets_.size());
  Bucket& bucket = buckets_[header.bucket];
  bucket.is_pushed = is_of_step(header.kind);
  bucket.base = header.base_answer;
}

ReturnEncoder::Packed ReturnEncoder::pack(uint32_t bucket_index, uint64_t offset, absl::Span<const float> fresh,
                                          std::byte* target) {
  GRADRAIL_CHECK(bucket_index < buckets_.size());
  Bucket& bucket = buckets_[bucket_index];
  const auto whole = static_cast<uint32_t>(whole_return_bytes(fresh.size()));
  if (format_ == ReturnFormat::bf16 || !bucket.is_pushed) {
    // Invariant 1: the elements that are held are not those of this answer.
    bucket.answer = 0;
    round_to_bf16(fresh, reinterpret_cast<uint16_t*>(target));
    return {.bytes = whole};
  }
  GRADRAIL_CHECK(offset + fresh.size() <= held_.size());
  uint16_t* const held = held_.data() + offset;
  size_t bytes = 0;
  if (bucket.answer != 0 && bucket.base == bucket.answer) {
    bytes = pack_delta(fresh, held, target);
  } else {
    round_to_bf16(fresh, held);
  }
  if (bytes == 0) {
    std::memcpy(target, held, whole);
    bytes = whole;
  }
  bucket.answer = bucket.answer == std::numeric_limits<uint16_t>::max() ? 1 : bucket.answer + 1;
  return {.bytes = static_cast<uint32_t>(bytes), .answer = bucket.answer};
}

}  // namespace gradrail::ps
