#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ps/protocol/mode.h"
#include "ps/protocol/schema.h"

namespace gradrail::ps {

/// A run of elements of the flattened parameters.
struct ElementRange {
  uint64_t first = 0;
  uint64_t count = 0;
  bool operator==(const ElementRange&) const = default;
};

/// Cuts the flattened parameters evenly by bytes over the shards, and each shard into buckets. Cuts ignore the tensors,
/// so that one large tensor does not load one shard. A bucket has elements of one fragment only. Every bucket begins on
/// a 64-byte boundary of its shard. Shards and buckets begin with a block of 64 elements in int8 and int4, and with a
/// chunk of 4096 in topk. The bits of a run do therefore not depend on the cut. A model with several fragments in topk
/// is the exception: chunks begin with a fragment, and with a shard within it. A model with few elements leaves the
/// last shards empty.
class ShardMap {
 public:
  /// Errors  INVALID_ARGUMENT: no shard, or bucket_bytes is not a positive multiple of 64 (int8, int4: of 256; topk:
  ///         of 16,384). Also more elements than a schema may have, or more than kMaxBuckets buckets in a shard.
  static absl::StatusOr<ShardMap> cut(const Layout& layout, uint32_t shard_count, uint32_t bucket_bytes,
                                      PushFormat push = PushFormat::fp32);
  /// The same for a model with one fragment.
  static absl::StatusOr<ShardMap> cut(uint64_t elements, uint32_t shard_count, uint32_t bucket_bytes,
                                      PushFormat push = PushFormat::fp32);
  /// The default size of buckets: a sixteenth of a shard, from 256 KiB to 1 MiB. A shard receives one bucket while it
  /// applies another one, and finds the gradient in its cache. Smaller buckets cost more than this saves.
  static uint32_t default_bucket_bytes(uint64_t elements, uint32_t shard_count);

  ShardMap() = default;
  uint64_t elements() const { return elements_; }
  uint32_t shard_count() const { return static_cast<uint32_t>(shards_.size()); }
  uint32_t fragment_count() const { return fragment_count_; }
  uint64_t bucket_elements() const { return bucket_elements_; }
  ElementRange shard(uint32_t shard_index) const { return shards_[shard_index].range; }
  uint32_t bucket_count(uint32_t shard_index) const;
  /// The fragment of a bucket, by its index in Layout::fragments.
  uint32_t fragment(uint32_t shard_index, uint32_t bucket_index) const;
  /// Units  elements of the whole model.
  ElementRange bucket(uint32_t shard_index, uint32_t bucket_index) const;

 private:
  /// Consecutive buckets of one fragment.
  struct Piece {
    ElementRange range;
    uint32_t fragment = 0;
    uint32_t first_bucket = 0;
  };
  struct Shard {
    ElementRange range;
    uint32_t bucket_count = 0;
    std::vector<Piece> pieces;
  };
  const Piece& piece_of(uint32_t shard_index, uint32_t bucket_index) const;
  absl::Status cut_pieces(const Layout& layout, Shard& shard) const;

  uint64_t elements_ = 0;
  uint64_t bucket_elements_ = 0;
  uint32_t fragment_count_ = 1;
  std::vector<Shard> shards_;
};

}  // namespace gradrail::ps
