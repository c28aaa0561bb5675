#include "ps/replica_layout.h"

#include "base/crc32c.h"
#include "fmt/format.h"
#include "ps/cluster_spec.h"

namespace gradrail::ps {
namespace {

/// Slots begin on a line of memory, as headers ask for.
size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

ReplicaLayout::ReplicaLayout(const ShardMap& map, uint32_t shard_index, int state_vectors, uint32_t capacity)
    : state_vectors_(state_vectors), capacity_(capacity), offsets_{0} {
  const ElementRange shard = map.shard(shard_index);
  for (uint32_t i = 0; i < map.bucket_count(shard_index); ++i) {
    const ElementRange range = map.bucket(shard_index, i);
    firsts_.push_back(range.first - shard.first);
    counts_.push_back(range.count);
    const size_t values = range.count * sizeof(float) * static_cast<size_t>(1 + state_vectors);
    offsets_.push_back(offsets_.back() + aligned(sizeof(ReplicaHeader) + capacity * sizeof(ReplicaDone) + values));
  }
}

float* ReplicaLayout::values(std::byte* slot, uint32_t bucket, int vector) const {
  auto* first = reinterpret_cast<float*>(slot + sizeof(ReplicaHeader) + capacity_ * sizeof(ReplicaDone));
  return first + static_cast<size_t>(vector + 1) * counts_[bucket];
}

absl::Status ReplicaLayout::seal(std::byte* slot, uint32_t bucket, const BucketState& state) const {
  if (state.done.size() > capacity_) {
    return absl::ResourceExhaustedError(
        fmt::format("{} workers are more than the {} that the standby keeps room for", state.done.size(), capacity_));
  }
  ReplicaDone* done = this->done(slot);
  for (size_t i = 0; i < state.done.size(); ++i) {
    const BucketState::Done& from = state.done[i];
    done[i] = {.incarnation = from.incarnation,
               .step = from.step,
               .staleness = from.staleness,
               .worker = from.worker,
               .dropped = from.dropped,
               .fresh = from.fresh};
  }
  *reinterpret_cast<ReplicaHeader*>(slot) = {
      .bucket = bucket,
      .version = state.version,
      .floor = state.floor,
      .done_count = static_cast<uint32_t>(state.done.size()),
      .initialised = state.initialised,
      .crc32c = crc32c(slot + sizeof(ReplicaHeader), slot_bytes(bucket) - sizeof(ReplicaHeader))};
  return absl::OkStatus();
}

absl::StatusOr<BucketState> ReplicaLayout::open(std::byte* slot, uint32_t bucket) const {
  const ReplicaHeader header = *reinterpret_cast<const ReplicaHeader*>(slot);
  if (header.magic != ReplicaHeader::kMagic || header.bucket != bucket || header.done_count > capacity_) {
    return absl::InvalidArgumentError(fmt::format("bucket {}: not a header of a standby's memory", bucket));
  }
  if (crc32c(slot + sizeof(ReplicaHeader), slot_bytes(bucket) - sizeof(ReplicaHeader)) != header.crc32c) {
    return absl::DataLossError(fmt::format("bucket {}: what arrived does not match its CRC32C", bucket));
  }
  BucketState state{.version = header.version, .floor = header.floor, .initialised = header.initialised != 0};
  const ReplicaDone* done = this->done(slot);
  for (uint32_t i = 0; i < header.done_count; ++i) {
    const ReplicaDone& from = done[i];
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
