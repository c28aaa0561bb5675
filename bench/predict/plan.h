#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/predict/description.h"
#include "ps/protocol/slot_places.h"

namespace gradrail::bench::predict {

/// The model as the exchange cuts it. Buckets of all shards have one common index.
struct Plan {
  struct Bucket {
    uint32_t shard = 0;
    uint32_t index = 0;  ///< index in its shard
    double fp32_bytes = 0;
    double push_bytes = 0;    ///< bytes of a push with its header
    double return_bytes = 0;  ///< bytes of an answer with its header
    uint32_t before = kNone;  ///< common index of the bucket that leaves before this one from its place
    uint32_t after = kNone;
    double ready = 1;  ///< share of the compute time after which its gradient is complete
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  std::vector<Bucket> buckets;
  std::vector<uint32_t> first_bucket;  ///< per shard, and one past the last
  std::vector<uint32_t> order;         ///< order in which the buckets of a step leave

  /// Bytes of the pushes of one step into the shard that has the most.
  double bytes_into_shard(const Cluster& cluster) const;
  /// The common index of a bucket of a shard.
  uint32_t index_of(uint32_t shard, uint32_t bucket) const { return first_bucket[shard] + bucket; }
  uint32_t bucket_count(uint32_t shard) const { return first_bucket[shard + 1] - first_bucket[shard]; }
};

/// Errors  INVALID_ARGUMENT, as ps::ShardMap::cut().
absl::StatusOr<Plan> plan_of(const Description& description);

}  // namespace gradrail::bench::predict
