#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ps/protocol.h"
#include "ps/shard_map.h"

namespace gradrail::ps {

// What a shard puts into the memory of its standby, whole buckets, one at a time each:
//
//   [ReplicaHeader][ReplicaDone × capacity][parameters][state vector 0]…      a slot for each bucket, one after the
//   other
//
// One put with the bucket's index as its immediate; the notice says that all of it is there. The standby copies it into
// its own and puts nothing back but a notice with the same immediate.

struct alignas(64) ReplicaHeader {
  static constexpr uint32_t kMagic = 0x4c504552;  // "REPL"
  uint32_t magic = kMagic;
  uint32_t bucket = 0;
  uint64_t version = 0;
  uint64_t floor = 0;
  uint32_t done_count = 0;
  uint32_t initialised = 0;
  uint32_t crc32c = 0;  ///< of all that follows the header
  uint32_t reserved[7] = {};
};

/// BucketState::Done
struct ReplicaDone {
  uint64_t incarnation = 0;
  uint64_t step = 0;
  uint64_t staleness = 0;
  uint32_t worker = 0;
  uint16_t dropped = 0;
  uint16_t fresh = 0;
};

static_assert(sizeof(ReplicaHeader) == 64 && std::is_trivially_copyable_v<ReplicaHeader>);
static_assert(sizeof(ReplicaDone) == 32 && std::is_trivially_copyable_v<ReplicaDone>);

/// Where everything is. Equal at both ends, which agree on the arguments.
class ReplicaLayout {
 public:
  ReplicaLayout(const ShardMap& map, uint32_t shard_index, int state_vectors, uint32_t capacity);

  size_t bytes() const { return offsets_.back(); }
  uint32_t bucket_count() const { return static_cast<uint32_t>(offsets_.size() - 1); }
  size_t slot_offset(uint32_t bucket) const { return offsets_[bucket]; }
  size_t slot_bytes(uint32_t bucket) const { return offsets_[bucket + 1] - offsets_[bucket]; }
  size_t elements(uint32_t bucket) const { return counts_[bucket]; }
  /// From the shard's first element on.
  size_t first(uint32_t bucket) const { return firsts_[bucket]; }
  uint32_t capacity() const { return capacity_; }
  int state_vectors() const { return state_vectors_; }

  /// The parts of a slot that begins at `slot`.
  ReplicaDone* done(std::byte* slot) const { return reinterpret_cast<ReplicaDone*>(slot + sizeof(ReplicaHeader)); }
  /// `vector`: -1 the parameters, then the optimizer's state.
  float* values(std::byte* slot, uint32_t bucket, int vector) const;

  /// Writes the header and what it counts; the values are there already. RESOURCE_EXHAUSTED: more workers than places.
  absl::Status seal(std::byte* slot, uint32_t bucket, const BucketState& state) const;
  /// Checks a slot that has arrived and reads its header. INVALID_ARGUMENT, DATA_LOSS.
  absl::StatusOr<BucketState> open(std::byte* slot, uint32_t bucket) const;

 private:
  int state_vectors_;
  uint32_t capacity_;
  std::vector<size_t> firsts_;
  std::vector<size_t> counts_;
  std::vector<size_t> offsets_;  ///< one more than buckets
};

}  // namespace gradrail::ps
