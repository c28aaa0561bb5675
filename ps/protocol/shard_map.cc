#include "ps/protocol/shard_map.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/check.h"
#include "base/status.h"
#include "base/utf8.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "ps/protocol/exchange_layout.h"
#include "ps/protocol/push_format.h"

namespace gradrail::ps {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 38;  // 1 TiB of fp32: no byte count in a header overflows below it
constexpr size_t kMaxNameBytes = 1024;                // a path of modules in a large model has some hundred

std::string describe(const Tensor& tensor) {
  const std::string shape = fmt::format("'{}' [{}]", tensor.name, fmt::join(tensor.shape, "×"));
  return tensor.fragment.empty() ? shape : fmt::format("{} of fragment '{}'", shape, tensor.fragment);
}

/// Whether a name is UTF-8: JSON files and archives take only such names.
bool is_utf8(std::string_view text) {
  while (const size_t bytes = utf8_character_bytes(text)) text.remove_prefix(bytes);
  return text.empty();
}

/// The reason why a tensor cannot have this name; "" for a good one.
std::string mistake_in_name(std::string_view name) {
  if (name.size() > kMaxNameBytes)
    return fmt::format("its name has {} bytes; the limit is {}", name.size(), kMaxNameBytes);
  if (!is_utf8(name)) return "its name is not UTF-8";
  // Logs, tables and file names of archives contain the names.
  if (std::any_of(name.begin(), name.end(), is_control))
    return fmt::format("its name '{}' contains a control character", escaped(name));
  return "";
}

/// 0: more than kMaxElements, or a dimension < 1.
uint64_t checked_elements(const Tensor& tensor) {
  uint64_t elements = 1;
  for (const int64_t dimension : tensor.shape) {
    // The check is a division: the product of the dimensions could overflow.
    if (dimension < 1 || static_cast<uint64_t>(dimension) > kMaxElements / elements) return 0;
    elements *= static_cast<uint64_t>(dimension);
  }
  return elements;
}

}  // namespace

uint64_t Tensor::elements() const { return checked_elements(*this); }

absl::Status validate(const Schema& schema) {
  if (schema.empty()) return absl::InvalidArgumentError("schema: no tensors");
  std::set<std::string> names;
  uint64_t total = 0;
  for (const Tensor& tensor : schema) {
    if (tensor.name.empty()) return absl::InvalidArgumentError("schema: a tensor without a name");
    // The message has the position: the name is not fit for it.
    if (const std::string mistake = mistake_in_name(tensor.name); !mistake.empty())
      return absl::InvalidArgumentError(fmt::format("schema: tensor {}: {}", &tensor - schema.data(), mistake));
    if (const std::string mistake = mistake_in_name(tensor.fragment); !mistake.empty())
      return absl::InvalidArgumentError(fmt::format("schema: fragment of tensor '{}': {}", tensor.name, mistake));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(fmt::format("schema: two tensors named '{}'", tensor.name));
    }
    const uint64_t elements = checked_elements(tensor);
    total += elements;
    if (elements == 0 || total > kMaxElements) {
      return absl::InvalidArgumentError(
          fmt::format("schema: tensor {}: dimensions must be at least 1 and all elements together at most {}",
                      describe(tensor), kMaxElements));
    }
  }
  return absl::OkStatus();
}

Layout layout_of(const Schema& schema) {
  Layout layout;
  std::map<std::string_view, uint32_t> indexes;
  for (const Tensor& tensor : schema) {
    const auto [place, is_new] = indexes.try_emplace(tensor.fragment, static_cast<uint32_t>(indexes.size()));
    if (is_new) layout.fragments.push_back(tensor.fragment);
    const uint32_t fragment = place->second;
    if (layout.runs.empty() || layout.runs.back().fragment != fragment) {
      layout.elements = (layout.elements + kScaleBlock - 1) / kScaleBlock * kScaleBlock;
      layout.runs.push_back({.first = layout.elements, .fragment = fragment});
    }
    layout.tensor_first.push_back(layout.elements);
    layout.tensor_fragment.push_back(fragment);
    layout.elements += tensor.elements();
  }
  return layout;
}

std::string difference(const Schema& ours, const Schema& theirs, const Sides& sides) {
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] != theirs[i]) {
      return fmt::format("tensor {}: {} {}, {} {}", i, describe(ours[i]), sides.ours, describe(theirs[i]),
                         sides.theirs);
    }
  }
  if (ours.size() != theirs.size())
    return fmt::format("{} tensors {}, {} {}", ours.size(), sides.ours, theirs.size(), sides.theirs);
  return "";
}

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
