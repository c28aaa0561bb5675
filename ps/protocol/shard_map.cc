#include "ps/protocol/shard_map.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/push_format.h"

namespace gradrail::ps {

absl::StatusOr<ShardMap> ShardMap::cut(uint64_t elements, uint32_t shard_count, uint32_t bucket_bytes,
                                       PushFormat push) {
  Layout layout;
  layout.fragments.emplace_back();
  layout.runs.push_back({});
  layout.elements = elements;
  return cut(layout, shard_count, bucket_bytes, push);
}

absl::StatusOr<ShardMap> ShardMap::cut(const Layout& layout, uint32_t shard_count, uint32_t bucket_bytes,
                                       PushFormat push) {
  if (shard_count == 0) return absl::InvalidArgumentError("shard map: at least one shard is needed");
  // A multiple of a cache line keeps each bucket on a boundary for vector instructions. A multiple of a block or chunk
  // gives a run the same bits for each number of shards and each bucket size.
  const uint64_t line_elements = cut_elements(push);
  if (bucket_bytes == 0 || bucket_bytes % (line_elements * sizeof(float)) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("bucket size {}: must be a positive multiple of {} bytes with push {}", bucket_bytes,
                    line_elements * sizeof(float), push_format_name(push)));
  }
  const uint64_t elements = layout.elements;
  if (elements > kMaxElements) {
    return absl::InvalidArgumentError(fmt::format("{} elements: at most {} can be cut", elements, kMaxElements));
  }
  ShardMap map;
  map.elements_ = elements;
  map.bucket_elements_ = bucket_bytes / sizeof(float);
  map.fragment_count_ = static_cast<uint32_t>(layout.fragments.size());
  // Shards differ by at most one line, so that none shares a line with its neighbor.
  const uint64_t lines = (elements + line_elements - 1) / line_elements;
  uint64_t first_line = 0;
  for (uint32_t i = 0; i < shard_count; ++i) {
    // The first shards take one line more each until the rest is used up.
    const uint64_t line_count = lines / shard_count + (i < lines % shard_count ? 1 : 0);
    const uint64_t first = std::min(first_line * line_elements, elements);
    const uint64_t end = std::min((first_line + line_count) * line_elements, elements);
    Shard& shard = map.shards_.emplace_back();
    shard.range = {first, end - first};
    GRADRAIL_RETURN_IF_ERROR(map.cut_pieces(layout, shard));
    first_line += line_count;
  }
  return map;
}

uint32_t ShardMap::default_bucket_bytes(uint64_t elements, uint32_t shard_count) {
  constexpr uint64_t kUnit = 64 << 10;  // a multiple of cut_elements() of each format
  constexpr uint64_t kLeast = 256 << 10;
  constexpr uint64_t kMost = 1 << 20;
  GRADRAIL_CHECK(shard_count > 0);
  const uint64_t share = elements / shard_count * sizeof(float) / 16;
  return static_cast<uint32_t>(std::clamp((share + kUnit - 1) / kUnit * kUnit, kLeast, kMost));
}

/// Cuts the range of a shard where the fragment changes.
absl::Status ShardMap::cut_pieces(const Layout& layout, Shard& shard) const {
  const uint64_t end = shard.range.first + shard.range.count;
  uint64_t bucket_count = 0;
  for (size_t i = 0; i < layout.runs.size(); ++i) {
    const uint64_t run_end = i + 1 < layout.runs.size() ? layout.runs[i + 1].first : layout.elements;
    const uint64_t first = std::max(layout.runs[i].first, shard.range.first);
    const uint64_t piece_end = std::min(run_end, end);
    if (first >= piece_end) continue;
    shard.pieces.push_back({.range = {first, piece_end - first},
                            .fragment = layout.runs[i].fragment,
                            .first_bucket = static_cast<uint32_t>(bucket_count)});
    bucket_count += (piece_end - first + bucket_elements_ - 1) / bucket_elements_;
    // The check is in each round: the sum of two rounds must not overflow the 32 bits of an index.
    if (bucket_count > kMaxBuckets) {
      return absl::InvalidArgumentError(
          fmt::format("{} elements in buckets of {} bytes are more than {} buckets a shard", elements_,
                      bucket_elements_ * sizeof(float), kMaxBuckets));
    }
  }
  shard.bucket_count = static_cast<uint32_t>(bucket_count);
  return absl::OkStatus();
}

uint32_t ShardMap::bucket_count(uint32_t shard_index) const {
  GRADRAIL_CHECK(shard_index < shards_.size());
  return shards_[shard_index].bucket_count;
}

const ShardMap::Piece& ShardMap::piece_of(uint32_t shard_index, uint32_t bucket_index) const {
  GRADRAIL_CHECK(shard_index < shards_.size());
  const Shard& shard = shards_[shard_index];
  GRADRAIL_CHECK(bucket_index < shard.bucket_count);  // otherwise the length of a bucket wraps to a huge one
  const auto next = std::upper_bound(shard.pieces.begin(), shard.pieces.end(), bucket_index,
                                     [](uint32_t index, const Piece& piece) { return index < piece.first_bucket; });
  return *std::prev(next);
}

uint32_t ShardMap::fragment(uint32_t shard_index, uint32_t bucket_index) const {
  return piece_of(shard_index, bucket_index).fragment;
}

ElementRange ShardMap::bucket(uint32_t shard_index, uint32_t bucket_index) const {
  const Piece& piece = piece_of(shard_index, bucket_index);
  const uint64_t offset = (bucket_index - piece.first_bucket) * bucket_elements_;
  return {piece.range.first + offset, std::min(bucket_elements_, piece.range.count - offset)};
}

}  // namespace gradrail::ps
