#include "ps/shard/return_encoder.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ps/optimizer/returns.h"
#include "ps/protocol/return_format.h"

namespace gradrail::ps {

void ReturnedElements::reset(uint32_t bucket_count, uint64_t elements) {
  *this = ReturnedElements();
  buckets_.resize(bucket_count);
  elements_ = elements;
}

uint64_t ReturnedElements::follow(uint32_t bucket_index, uint64_t offset, absl::Span<const float> parameters) {
  GRADRAIL_CHECK(bucket_index < buckets_.size() && offset + parameters.size() <= elements_);
  Bucket& bucket = buckets_[bucket_index];
  if (!bucket.is_outdated) return bucket.content;
  held_.resize(elements_);
  stamps_.resize(elements_);
  uint16_t* const stamps = stamps_.data() + offset;
  if (bucket.content - bucket.period == std::numeric_limits<uint16_t>::max()) {
    bucket.period = bucket.content;
    std::fill_n(stamps, parameters.size(), uint16_t{0});
  }
  ++bucket.content;
  stamp_changes(parameters, static_cast<uint16_t>(bucket.content - bucket.period), held_.data() + offset, stamps);
  bucket.is_outdated = false;
  return bucket.content;
}

size_t ReturnedElements::write(uint32_t bucket_index, uint64_t offset, size_t count, uint64_t base,
                               std::byte* target) const {
  GRADRAIL_CHECK(bucket_index < buckets_.size() && offset + count <= held_.size());
  const Bucket& bucket = buckets_[bucket_index];
  GRADRAIL_CHECK(base <= bucket.content && !bucket.is_outdated);
  const uint16_t* const held = held_.data() + offset;
  if (base != 0 && base >= bucket.period) {
    const auto stamp = static_cast<uint16_t>(base - bucket.period);
    if (const size_t bytes = pack_delta({held, count}, stamps_.data() + offset, stamp, target); bytes > 0) return bytes;
  }
  std::memcpy(target, held, whole_return_bytes(count));
  return whole_return_bytes(count);
}

ReturnEncoder::ReturnEncoder(ReturnFormat format, uint32_t bucket_count, ReturnedElements& elements)
    : format_(format), buckets_(bucket_count), elements_(&elements) {
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
  if (format_ == ReturnFormat::bf16 || !bucket.is_pushed) {
    // Invariant 1: the content is not that of this answer.
    bucket.answer = 0;
    round_to_bf16(fresh, reinterpret_cast<uint16_t*>(target));
    return {.bytes = static_cast<uint32_t>(whole_return_bytes(fresh.size()))};
  }
  const bool is_known = bucket.answer != 0 && bucket.base == bucket.answer;
  const uint64_t base = is_known ? bucket.content : 0;
  bucket.content = elements_->follow(bucket_index, offset, fresh);
  const size_t bytes = elements_->write(bucket_index, offset, fresh.size(), base, target);
  bucket.answer = bucket.answer == std::numeric_limits<uint16_t>::max() ? 1 : bucket.answer + 1;
  return {.bytes = static_cast<uint32_t>(bytes), .answer = bucket.answer};
}

}  // namespace gradrail::ps
