#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "worker/data/sparse.h"

namespace gradrail::worker {

/// The rows first_row … end_row - 1 of a row-major matrix, each `stride` floats behind the one before.
struct Rows {
  const float* data;
  size_t stride;
  size_t first_row;
  size_t end_row;
};

/// out[j] = start[j] + Σk scaled[values[k].value()] · rows[values[k].row(), j] for j < width, in the order of k, up to
/// the first value with a row beyond the end. Returns the number of values before it.
/// Shapes   scaled: [256]; start, out: [width], and may be the same; start null: zeros. No row below first_row.
size_t accumulate_rows(SparseValues values, const float* scaled, const Rows& rows, size_t width, const float* start,
                       float* out);

/// The products with a sparse batch X [batch, inputs], pixels scaled by 1/255.
/// Threads  One owner; computes in the caller's thread.
class SparseProduct {
 public:
  SparseProduct(size_t batch, size_t inputs, size_t width);

  /// Z [batch, width] = X · W [inputs, width] + bias [width].
  void forward(absl::Span<const SparseValues> by_image, const float* weights, const float* bias, float* z);
  /// G [inputs, width] = Xᵀ · dZ [batch, width].
  void backward(absl::Span<const SparseValues> by_pixel, const float* dz, float* gradient);

 private:
  /// Copies rows to where each begins at a vector's boundary.
  Rows pack(const float* matrix, size_t first_row, size_t end_row);
  /// Adds the share of these pixels; the first tile starts from the bias.
  void forward_tile(const Rows& weights, const float* bias, float* z);

  struct alignas(64) Line {
    float values[16];
  };

  const size_t batch_, inputs_, width_;
  const size_t stride_;
  const size_t tile_rows_;
  std::array<float, 256> scaled_;
  std::vector<Line> packed_;
  std::vector<SparseValues> rest_;  // values of each image that forward() has not added yet
};

}  // namespace gradrail::worker
