#include "ps/protocol/slot_places.h"

#include <algorithm>

#include "ps/protocol/exchange_layout.h"

namespace gradrail::ps {

SlotPlaces::SlotPlaces(const ShardMap& map, uint32_t shard_index, uint64_t limit_bytes) {
  const uint32_t bucket_count = map.bucket_count(shard_index);
  place_bytes_ = std::min(map.bucket_elements(), map.shard(shard_index).count) * sizeof(float);
  const uint64_t limit = limit_bytes == 0 || place_bytes_ == 0 ? bucket_count : limit_bytes / place_bytes_;
  std::vector<std::vector<uint32_t>> fragments(map.fragment_count());
  for (uint32_t bucket = bucket_count; bucket-- > 0;) fragments[map.fragment(shard_index, bucket)].push_back(bucket);
  places_.resize(bucket_count);
  before_.assign(bucket_count, kNone);
  after_.assign(bucket_count, kNone);
  for (const std::vector<uint32_t>& buckets : fragments) {
    if (buckets.empty()) continue;
    const uint64_t share = limit < bucket_count ? limit * buckets.size() / bucket_count : buckets.size();
    const auto place_count = static_cast<uint32_t>(std::max<uint64_t>(share, 1));
    for (size_t i = 0; i < buckets.size(); ++i) {
      places_[buckets[i]] = count_ + static_cast<uint32_t>(i) % place_count;
      if (i < place_count) continue;
      before_[buckets[i]] = buckets[i - place_count];
      after_[buckets[i - place_count]] = buckets[i];
    }
    count_ += std::min<uint32_t>(place_count, static_cast<uint32_t>(buckets.size()));
  }
}

uint64_t SlotPlaces::header_bytes() const { return places_.size() * sizeof(SlotHeader); }

uint64_t SlotPlaces::region_bytes() const { return header_bytes() + count_ * place_bytes_; }

}  // namespace gradrail::ps
