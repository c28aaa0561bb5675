#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ps/protocol/shard_map.h"

namespace gradrail::ps {

/// The places of payloads in the slot region of one worker at one shard (exchange_layout.h). With fewer places than
/// buckets, several buckets share one: a bucket leaves when the one before it at its place is answered. The memory of a
/// shard then grows with the places of its workers, and not with their models.
///
/// Buckets of one place are of one fragment. All workers push them in the same order, the last one first. Compare the
/// workers that wait by their step, and by the bucket in that order. All others have pushed what the last of them waits
/// for, so that it does not wait. A quorum has a place for each bucket. Its late workers are further on in one bucket
/// than the others are in the next.
class SlotPlaces {
 public:
  SlotPlaces() = default;
  /// `limit_bytes` for the payloads; 0: each bucket has a place. Each fragment has at least one.
  SlotPlaces(const ShardMap& map, uint32_t shard_index, uint64_t limit_bytes);

  uint32_t count() const { return count_; }
  /// Bytes of the slot region: headers and places.
  uint64_t region_bytes() const;
  /// Byte of the place of a bucket behind the headers, and in the slot region.
  uint64_t payload_at(uint32_t bucket) const { return places_[bucket] * place_bytes_; }
  uint64_t region_payload_at(uint32_t bucket) const { return header_bytes() + payload_at(bucket); }
  /// The bucket that leaves before this one from its place in a step, and the one that leaves after it.
  std::optional<uint32_t> before(uint32_t bucket) const { return neighbor(before_[bucket]); }
  std::optional<uint32_t> after(uint32_t bucket) const { return neighbor(after_[bucket]); }

 private:
  uint64_t header_bytes() const;
  static constexpr uint32_t kNone = UINT32_MAX;
  static std::optional<uint32_t> neighbor(uint32_t bucket) {
    return bucket == kNone ? std::nullopt : std::optional(bucket);
  }

  uint64_t place_bytes_ = 0;
  uint32_t count_ = 0;
  std::vector<uint32_t> places_;  ///< per bucket
  std::vector<uint32_t> before_;
  std::vector<uint32_t> after_;
};

}  // namespace gradrail::ps
