#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "gpu/compute/host_compute_loops.h"

// This file replaces host_compute_product.cc in a build without oneDNN.

namespace gradrail::gpu::host {
namespace {

constexpr size_t kTileRows = 4, kTileColumns = 8;  // the sums of a tile fit in the 16 registers of SSE2
constexpr size_t kDepth = 128;                     // rows of B that stay in the first cache from tile to tile

/// A [m, k] in either orientation: element [i, l] is data[i * row + l * column].
struct Left {
  const float* data;
  size_t row, column;
};

/// c += a · b for one tile; rows of b and c have `n` elements.
template <size_t kRows, size_t kColumns>
void add_tile(size_t k, Left a, const float* b, size_t n, float* c) {
  float sums[kRows][kColumns];
  for (size_t i = 0; i < kRows; ++i) std::copy_n(c + i * n, kColumns, sums[i]);
  for (size_t l = 0; l < k; ++l) {
    for (size_t i = 0; i < kRows; ++i) {
      const float left = a.data[i * a.row + l * a.column];
      for (size_t j = 0; j < kColumns; ++j) sums[i][j] += left * b[l * n + j];
    }
  }
  for (size_t i = 0; i < kRows; ++i) std::copy_n(sums[i], kColumns, c + i * n);
}

/// The same for kRows rows of c and all columns.
template <size_t kRows>
void add_rows(size_t k, Left a, const float* b, size_t n, float* c) {
  size_t j = 0;
  for (; j + kTileColumns <= n; j += kTileColumns) add_tile<kRows, kTileColumns>(k, a, b + j, n, c + j);
  for (; j < n; ++j) add_tile<kRows, 1>(k, a, b + j, n, c + j);
}

std::vector<float> transpose(size_t rows, size_t columns, const float* x) {
  std::vector<float> result(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) result[j * rows + i] = x[i * columns + j];
  }
  return result;
}

}  // namespace

absl::Status product(const ProductShape& s, const float* a, const float* b, float* c, bool accumulate) {
  if (!accumulate) std::fill_n(c, s.m * s.n, 0.0f);
  std::vector<float> turned;
  if (s.transposed_b) {
    turned = transpose(s.n, s.k, b);
    b = turned.data();
  }
  const Left left = s.transposed_a ? Left{a, 1, s.m} : Left{a, s.k, 1};
  for (size_t first = 0; first < s.k; first += kDepth) {
    const size_t depth = std::min(kDepth, s.k - first);
    const auto row = [&](size_t i) {
      return Left{left.data + i * left.row + first * left.column, left.row, left.column};
    };
    size_t i = 0;
    for (; i + kTileRows <= s.m; i += kTileRows) add_rows<kTileRows>(depth, row(i), b + first * s.n, s.n, c + i * s.n);
    for (; i < s.m; ++i) add_rows<1>(depth, row(i), b + first * s.n, s.n, c + i * s.n);
  }
  return absl::OkStatus();
}

}  // namespace gradrail::gpu::host
