#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gradrail::ps {

/// One named tensor of the model, fp32.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t elements() const;
  bool operator==(const Tensor&) const = default;
};

/// All tensors, in the order in which they are flattened into one element range.
using Schema = std::vector<Tensor>;

/// INVALID_ARGUMENT names the tensor: no name or one that is not UTF-8, twice the same name, a dimension < 1, or more
/// elements than fit.
absl::Status validate(const Schema& schema);

/// What differs, for people: "tensor 2: 'b1' [100] here, 'b1' [128] there". "" when equal.
std::string difference(const Schema& ours, const Schema& theirs);

/// A run of elements of the flattened parameters.
struct ElementRange {
  uint64_t first = 0;
  uint64_t count = 0;
  bool operator==(const ElementRange&) const = default;
};

/// Cuts the flattened parameters evenly by bytes over the shards and each shard into buckets. Every bucket begins on a
/// 64-byte boundary of its shard; tensors are not the unit. Shards at the end may be empty when there are few elements.
class ShardMap {
 public:
  /// INVALID_ARGUMENT: no shard, bucket_bytes not a positive multiple of 64, more elements than a schema may have, or
  /// more than kMaxBuckets buckets in a shard.
  static absl::StatusOr<ShardMap> cut(uint64_t elements, uint32_t shard_count, uint32_t bucket_bytes);

  ShardMap() = default;
  uint64_t elements() const { return elements_; }
  uint32_t shard_count() const { return static_cast<uint32_t>(shards_.size()); }
  uint64_t bucket_elements() const { return bucket_elements_; }
  ElementRange shard(uint32_t shard_index) const { return shards_[shard_index]; }
  uint32_t bucket_count(uint32_t shard_index) const;
  /// In elements of the whole model.
  ElementRange bucket(uint32_t shard_index, uint32_t bucket_index) const;

 private:
  uint64_t elements_ = 0;
  uint64_t bucket_elements_ = 0;
  std::vector<ElementRange> shards_;
};

}  // namespace gradrail::ps
