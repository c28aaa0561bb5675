#include "ps/replication/backup_layout.h"

#include <cassert>

#include "base/check.h"
#include "base/crc32c.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"

namespace gradrail::ps {
namespace {

/// A header needs the alignment of a cache line.
size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

BackupLayout::BackupLayout(const ShardMap& map, uint32_t shard_index, int state_vectors, uint32_t capacity)
    : state_vectors_(state_vectors), capacity_(capacity), offsets_{0} {
  GRADRAIL_CHECK(shard_index < map.shard_count() && state_vectors >= 0);
  const ElementRange shard = map.shard(shard_index);
  for (uint32_t i = 0; i < map.bucket_count(shard_index); ++i) {
    const ElementRange range = map.bucket(shard_index, i);
    firsts_.push_back(range.first - shard.first);
    counts_.push_back(range.count);
    const size_t values = range.count * sizeof(float) * static_cast<size_t>(1 + state_vectors);
    // The last entry is the size of all slots.
    offsets_.push_back(offsets_.back() + aligned(sizeof(BackupHeader) + capacity * sizeof(BackupDone) + values));
  }
}

float* BackupLayout::values(std::byte* slot, uint32_t bucket, int vector) const {
  assert(bucket < counts_.size() && vector >= -1 && vector < state_vectors_);
  // The payload follows the whole table, not its used rows: the place must not change with the number of workers.
  auto* first = reinterpret_cast<float*>(slot + sizeof(BackupHeader) + capacity_ * sizeof(BackupDone));
  return first + static_cast<size_t>(vector + 1) * counts_[bucket];
}

absl::Status BackupLayout::seal(std::byte* slot, uint32_t bucket, const BucketState& state) const {
  if (state.done.size() > capacity_) {
    return absl::ResourceExhaustedError(
        fmt::format("{} workers are more than the {} for which the backup has room", state.done.size(), capacity_));
  }
  GRADRAIL_CHECK(bucket < bucket_count());
  BackupDone* done = this->done(slot);
  for (size_t i = 0; i < state.done.size(); ++i) {
    const BucketState::Done& from = state.done[i];
    done[i] = {.incarnation = from.incarnation,
               .step = from.step,
               .staleness = from.staleness,
               .worker = from.worker,
               .dropped = from.dropped,
               .fresh = from.fresh};
  }
  // Last: the checksum covers the values, the table, and the unused rows of it as they are.
  *reinterpret_cast<BackupHeader*>(slot) = {
      .bucket = bucket,
      .version = state.version,
      .floor = state.floor,
      .done_count = static_cast<uint32_t>(state.done.size()),
      .initialised = state.initialised,
      .crc32c = crc32c(slot + sizeof(BackupHeader), slot_bytes(bucket) - sizeof(BackupHeader))};
  return absl::OkStatus();
}

absl::StatusOr<BucketState> BackupLayout::open(std::byte* slot, uint32_t bucket) const {
  // A copy: puts of another process write here, and the header must not change between check and use.
  const BackupHeader header = *reinterpret_cast<const BackupHeader*>(slot);
  if (header.magic != BackupHeader::kMagic || header.bucket != bucket || header.done_count > capacity_) {
    return absl::InvalidArgumentError(fmt::format("bucket {}: not a header of a backup slot", bucket));
  }
  if (crc32c(slot + sizeof(BackupHeader), slot_bytes(bucket) - sizeof(BackupHeader)) != header.crc32c) {
    return absl::DataLossError(fmt::format("bucket {}: the slot does not match its CRC32C", bucket));
  }
  // Another process sends the table: each row is checked before it reaches the protocol.
  BucketState state{.version = header.version, .floor = header.floor, .initialised = header.initialised != 0};
  const BackupDone* done = this->done(slot);
  for (uint32_t i = 0; i < header.done_count; ++i) {
    const BackupDone& from = done[i];
    if (from.worker >= kMaxWorkers) {
      return absl::InvalidArgumentError(fmt::format("bucket {}: there is no worker {}", bucket, from.worker));
    }
    state.done.push_back({.worker = from.worker,
                          .incarnation = from.incarnation,
                          .step = from.step,
                          .staleness = from.staleness,
                          .dropped = from.dropped != 0,
                          .fresh = from.fresh != 0});
  }
  return state;
}

}  // namespace gradrail::ps
