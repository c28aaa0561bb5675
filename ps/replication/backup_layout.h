#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ps/protocol/shard_map.h"
#include "ps/replication/bucket_state.h"

namespace gradrail::ps {

// A primary puts whole buckets into the memory of its backup, one transfer of a bucket at a time:
//
//   [BackupHeader][BackupDone × capacity][parameters][state vector 0]…      one slot per bucket, one after the other
//
// Each transfer is one put, with the index of the bucket as its immediate. The notice of the put means that the whole
// slot has arrived. The backup copies the slot into its store. It answers with an empty put with the same immediate.

/// Aligned to a cache line, so that no two slots share one. The reserved bytes are zero.
struct alignas(64) BackupHeader {
  static constexpr uint32_t kMagic = 0x4c504552;  // "REPL"
  uint32_t magic = kMagic;
  uint32_t bucket = 0;
  /// Updates applied to this bucket.
  uint64_t version = 0;
  /// ssp: the step that all expected workers have pushed.
  uint64_t floor = 0;
  uint32_t done_count = 0;
  /// 0: the parameters have no values yet, and those of the slot are zeros.
  uint32_t initialised = 0;
  uint32_t crc32c = 0;  ///< CRC32C of the slot behind the header
  uint32_t reserved[7] = {};
};

/// BucketState::Done on the wire.
struct BackupDone {
  uint64_t incarnation = 0;
  uint64_t step = 0;
  uint64_t staleness = 0;
  uint32_t worker = 0;
  /// Whether the last push was too late and was not summed.
  uint16_t dropped = 0;
  /// ssp: nothing was pushed yet, and `step` is only where the worker begins.
  uint16_t fresh = 0;
};

static_assert(sizeof(BackupHeader) == 64 && std::is_trivially_copyable_v<BackupHeader>);
static_assert(sizeof(BackupDone) == 32 && std::is_trivially_copyable_v<BackupDone>);

/// Offsets of the slots and of their parts. Equal at both ends, which agree on the arguments.
class BackupLayout {
 public:
  /// `capacity`: number of BackupDone in a slot.
  BackupLayout(const ShardMap& map, uint32_t shard_index, int state_vectors, uint32_t capacity);

  size_t bytes() const { return offsets_.back(); }
  uint32_t bucket_count() const { return static_cast<uint32_t>(offsets_.size() - 1); }
  size_t slot_offset(uint32_t bucket) const { return offsets_[bucket]; }
  size_t slot_bytes(uint32_t bucket) const { return offsets_[bucket + 1] - offsets_[bucket]; }
  size_t elements(uint32_t bucket) const { return counts_[bucket]; }
  /// First element of the bucket, counted from the shard's first element.
  size_t first(uint32_t bucket) const { return firsts_[bucket]; }
  uint32_t capacity() const { return capacity_; }
  int state_vectors() const { return state_vectors_; }

  /// Parts of the slot that begins at `slot`. `vector`: -1 the parameters, then the optimizer's state.
  BackupDone* done(std::byte* slot) const { return reinterpret_cast<BackupDone*>(slot + sizeof(BackupHeader)); }
  float* values(std::byte* slot, uint32_t bucket, int vector) const;

  /// Writes the header and the table of done pushes. The values must be in the slot already: the checksum covers them.
  /// Errors  RESOURCE_EXHAUSTED: more workers than `capacity`.
  absl::Status seal(std::byte* slot, uint32_t bucket, const BucketState& state) const;
  /// Checks a slot that has arrived and reads its header and table.
  /// Errors  INVALID_ARGUMENT: not this bucket's slot. DATA_LOSS: wrong checksum.
  absl::StatusOr<BucketState> open(std::byte* slot, uint32_t bucket) const;

 private:
  int state_vectors_;
  uint32_t capacity_;
  std::vector<size_t> firsts_;
  std::vector<size_t> counts_;
  std::vector<size_t> offsets_;  ///< one entry more than buckets
};

}  // namespace gradrail::ps
