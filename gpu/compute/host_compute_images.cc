#include <algorithm>
#include <array>

#include "gpu/compute/host_compute_loops.h"

namespace gradrail::gpu::host {
namespace {

/// Calls visit(patch entry, image element, channels) for each run of channels that a patch takes from an image. Calls
/// outside(patch entry) for entries beyond the border. Calls follow the order of the columns.
template <typename Visit, typename Outside>
void walk_patches(const ImageShape& shape, size_t kernel, Visit visit, Outside outside) {
  // The kernel is odd: as much border on each side, and the output has the size of the image.
  const size_t border = kernel / 2;
  size_t entry = 0;
  for (size_t image = 0; image < shape.count; ++image) {
    for (size_t patch = 0; patch < shape.height * shape.width; ++patch) {
      for (size_t k = 0; k < kernel * kernel; ++k, entry += shape.channels) {
        // The difference wraps around above and to the left of the image, and is too large as well.
        const size_t y = patch / shape.width + k / kernel - border;
        const size_t x = patch % shape.width + k % kernel - border;
        if (y < shape.height && x < shape.width) {
          visit(entry, ((image * shape.height + y) * shape.width + x) * shape.channels);
        } else {
          outside(entry);
        }
      }
    }
  }
}

/// The four elements of the window of pooled element `pooled`, row by row.
std::array<size_t, 4> window(const ImageShape& shape, size_t pooled) {
  const size_t channel = pooled % shape.channels;
  const size_t column = pooled / shape.channels % (shape.width / 2);
  const size_t row = pooled / shape.channels / (shape.width / 2);  // row in all images, which are consecutive
  const size_t first = (2 * row * shape.width + 2 * column) * shape.channels + channel;
  const size_t below = first + shape.width * shape.channels;
  return {first, first + shape.channels, below, below + shape.channels};
}

/// The first of the largest; a NaN counts as larger than any number, so that a diverged model shows.
size_t largest(const float* images, const std::array<size_t, 4>& elements) {
  size_t best = elements[0];
  for (const size_t element : elements) {
    if (images[element] > images[best] || (images[element] != images[element] && images[best] == images[best])) {
      best = element;
    }
  }
  return best;
}

}  // namespace

void im2col(const ImageShape& shape, size_t kernel, const float* images, float* columns) {
  walk_patches(
      shape, kernel,
      [&](size_t entry, size_t element) { std::copy_n(images + element, shape.channels, columns + entry); },
      [&](size_t entry) { std::fill_n(columns + entry, shape.channels, 0.0f); });
}

void col2im(const ImageShape& shape, size_t kernel, const float* columns, float* images) {
  // Patches overlap, so that an element collects several entries.
  std::fill_n(images, shape.elements(), 0.0f);
  const auto add = [&](size_t entry, size_t element) {
    for (size_t c = 0; c < shape.channels; ++c) images[element + c] += columns[entry + c];
  };
  walk_patches(shape, kernel, add, [](size_t) {});
}

void max_pool(const ImageShape& shape, const float* images, float* pooled) {
  for (size_t i = 0; i < shape.elements() / 4; ++i) pooled[i] = images[largest(images, window(shape, i))];
}

void max_pool_backward(const ImageShape& shape, const float* images, const float* pooled_gradient, float* gradient) {
  for (size_t i = 0; i < shape.elements() / 4; ++i) {
    const std::array<size_t, 4> elements = window(shape, i);
    for (const size_t element : elements) gradient[element] = 0.0f;
    gradient[largest(images, elements)] = pooled_gradient[i];
  }
}

}  // namespace gradrail::gpu::host
