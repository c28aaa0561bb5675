#include "worker/models/sparse_product.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "worker/data/pixels.h"
#include "worker/data/vector_clones.h"

namespace gradrail::worker {
namespace {

// Eight floats, even where registers hold sixteen. Rows are padded less, and Zen 4 is no faster with the wide ones
// (45 to 47 us a product instead of 43 to 44).
constexpr size_t kLanes = 8;
using Vector [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Unaligned [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] = float;

// Sums of one pass, held in registers: with the factor and one to spare all 16 of x86-64-v3. A width of 100 is one
// pass.
constexpr size_t kMaxBlocks = 13;

// Rows of weights worked on at a time: about the first-level cache. Smaller tiles cost more in the lists' ends, each a
// mispredicted branch, than they save in loads from the second level. 24 KiB: 60 us a product instead of 52.
constexpr size_t kTileBytes = 40 * 1024;

struct Panel {
  SparseValues values;
  const float* scaled;
  Rows rows;
  size_t width;  // columns
  const float* start;
  float* out;
};

/// `Blocks` vectors cover the panel's width. The last one ends at its end and so may overlap the one before, which
/// computes the same sums twice, but needs no narrower rest.
template <size_t Blocks>
[[gnu::always_inline]] inline size_t accumulate_panel(const Panel& panel) {
  const auto column = [&panel](size_t block) { return block + 1 < Blocks ? block * kLanes : panel.width - kLanes; };
  Vector sums[Blocks];
  // The loop is unrolled explicitly: if later passes unroll it, the array stays in memory.
#pragma GCC unroll 16
  for (size_t b = 0; b < Blocks; ++b) sums[b] = Vector{};
  if (panel.start != nullptr) {
#pragma GCC unroll 16
    for (size_t b = 0; b < Blocks; ++b) sums[b] = *reinterpret_cast<const Unaligned*>(panel.start + column(b));
  }
  // The loop finds its end during the run: one mispredicted branch for each list, not two.
  size_t k = 0;
  for (; k < panel.values.size() && panel.values[k].row() < panel.rows.end_row; ++k) {
    const float factor = panel.scaled[panel.values[k].value()];
    const float* row = panel.rows.data + (panel.values[k].row() - panel.rows.first_row) * panel.rows.stride;
#pragma GCC unroll 16
    for (size_t b = 0; b < Blocks; ++b) sums[b] += factor * *reinterpret_cast<const Unaligned*>(row + column(b));
  }
#pragma GCC unroll 16
  for (size_t b = 0; b < Blocks; ++b) *reinterpret_cast<Unaligned*>(panel.out + column(b)) = sums[b];
  return k;
}

/// Narrower than a vector: no known model, but a valid one.
[[gnu::always_inline]] inline size_t accumulate_narrow(const Panel& panel) {
  size_t k = 0;
  for (size_t j = 0; j < panel.width; ++j) panel.out[j] = panel.start != nullptr ? panel.start[j] : 0.0f;
  for (; k < panel.values.size() && panel.values[k].row() < panel.rows.end_row; ++k) {
    const float factor = panel.scaled[panel.values[k].value()];
    const float* row = panel.rows.data + (panel.values[k].row() - panel.rows.first_row) * panel.rows.stride;
    for (size_t j = 0; j < panel.width; ++j) panel.out[j] += factor * row[j];
  }
  return k;
}

[[gnu::always_inline]] inline size_t accumulate_blocks(size_t blocks, const Panel& panel) {
  switch (blocks) {
    case 1:
      return accumulate_panel<1>(panel);
    case 2:
      return accumulate_panel<2>(panel);
    case 3:
      return accumulate_panel<3>(panel);
    case 4:
      return accumulate_panel<4>(panel);
    case 5:
      return accumulate_panel<5>(panel);
    case 6:
      return accumulate_panel<6>(panel);
    case 7:
      return accumulate_panel<7>(panel);
    case 8:
      return accumulate_panel<8>(panel);
    case 9:
      return accumulate_panel<9>(panel);
    case 10:
      return accumulate_panel<10>(panel);
    case 11:
      return accumulate_panel<11>(panel);
    case 12:
      return accumulate_panel<12>(panel);
    default:
      return accumulate_panel<kMaxBlocks>(panel);
  }
}

size_t rounded_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

GRADRAIL_VECTOR_CLONES
size_t accumulate_rows(SparseValues values, const float* scaled, const Rows& rows, size_t width, const float* start,
                       float* out) {
  Panel panel{values, scaled, rows, width, start, out};
  if (width < kLanes) return accumulate_narrow(panel);
  size_t blocks = (width + kLanes - 1) / kLanes;
  size_t count = 0;
  // Shared out evenly, so that no panel is narrower than a vector: where start is out, an overlap with the panel
  // before would add twice.
  for (size_t panels = (blocks + kMaxBlocks - 1) / kMaxBlocks; panels > 0; --panels) {
    const size_t mine = (blocks + panels - 1) / panels;
    panel.width = std::min(mine * kLanes, width);
    count = accumulate_blocks(mine, panel);
    blocks -= mine;
    width -= panel.width;
    panel.rows.data += panel.width;
    if (panel.start != nullptr) panel.start += panel.width;
    panel.out += panel.width;
  }
  return count;
}

SparseProduct::SparseProduct(size_t batch, size_t inputs, size_t width)
    : batch_(batch),
      inputs_(inputs),
      width_(width),
      stride_(rounded_up(width, kLanes)),
      tile_rows_(std::max<size_t>(1, kTileBytes / (stride_ * sizeof(float)))),
      packed_(rounded_up(std::max(batch, tile_rows_) * stride_ * sizeof(float), sizeof(Line)) / sizeof(Line)),
      rest_(batch) {
  std::array<uint8_t, 256> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  // The same factors, to the bit, as a dense batch has.
  scale_pixels(bytes.data(), bytes.size(), scaled_.data());
}

Rows SparseProduct::pack(const float* matrix, size_t first_row, size_t end_row) {
  float* packed = packed_.data()->values;
  for (size_t row = first_row; row < end_row; ++row, packed += stride_) {
    std::memcpy(packed, matrix + row * width_, width_ * sizeof(float));
  }
  return {.data = packed_.data()->values, .stride = stride_, .first_row = first_row, .end_row = end_row};
}

void SparseProduct::forward(absl::Span<const SparseValues> by_image, const float* weights, const float* bias,
                            float* z) {
  GRADRAIL_CHECK(by_image.size() == batch_);
  // Lists are in the order of rows: each tile takes a prefix of every list, and the rest waits for the next tile.
  std::copy(by_image.begin(), by_image.end(), rest_.begin());
  for (size_t first = 0; first < inputs_; first += tile_rows_) {
    forward_tile(pack(weights, first, std::min(first + tile_rows_, inputs_)), bias, z);
  }
}

void SparseProduct::forward_tile(const Rows& weights, const float* bias, float* z) {
  for (SparseValues& rest : rest_) {
    // The first tile starts from the bias, later ones add to the sums of those before.
    const float* start = weights.first_row == 0 ? bias : z;
    rest.remove_prefix(accumulate_rows(rest, scaled_.data(), weights, width_, start, z));
    z += width_;
  }
}

void SparseProduct::backward(absl::Span<const SparseValues> by_pixel, const float* dz, float* gradient) {
  GRADRAIL_CHECK(by_pixel.size() == inputs_);
  // One tile is enough: `packed_` has room for a row of each image of the batch.
  const Rows rows = pack(dz, 0, batch_);
  for (const SparseValues& values : by_pixel) {
    accumulate_rows(values, scaled_.data(), rows, width_, nullptr, gradient);
    gradient += width_;
  }
}

}  // namespace gradrail::worker
