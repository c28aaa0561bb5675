#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ps/protocol/shard_map.h"

namespace gradrail::ps {

/// The places of payloads in the slot region of one worker at one shard (exchange_layout.h). Several buckets share a
/// place if there are fewer places than buckets: a bucket leaves when the one before it at its place is answered. The
/// memory of a shard then grows with the places of its workers, and not with their models.
///
/// Buckets of one place are of one fragment. All workers push them in the same order, the last one first. No worker
/// then waits for a bucket that another one cannot push:
///
///   1. A worker begins a step of a fragment when each of its buckets is answered in the step before. Such an answer
///      shows at least the version of that step. In a quorum this includes the further steps of a late worker, which
///      pushes or is absent in each bucket. All buckets therefore have the version s - 1 when a worker is in step s.
///   2. Of all workers that wait, consider one with the lowest step s. Of those in step s at one place, consider the
///      one that waits for the first bucket b in the common order. The version of b is s - 1.
///   3. No worker is in a later step than s, because b would have the version s. All that wait are therefore in step s.
///      At this place they have an answer for each bucket before b, and none for b. All of them have pushed b or are
///      absent from it.
///   4. The step s of b therefore has all that a place for each bucket would give it.
///
/// Workers in ssp wait in different steps. The one that is behind, by step and bucket, is answered immediately. No
/// worker in async waits for another one.
/// tests/ps/prove searches all states of small clusters with one place.
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
  std::vector<uint32_t> places_;  ///< place of each bucket
  std::vector<uint32_t> before_;
  std::vector<uint32_t> after_;
};

}  // namespace gradrail::ps
