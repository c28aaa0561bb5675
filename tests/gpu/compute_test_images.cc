#include <array>
#include <cmath>

#include "gtest/gtest.h"
#include "tests/gpu/compute_test_bed.h"

// Convolution by patches, and pooling, against their definitions in double.

namespace gradrail::gpu {
namespace {

class ComputeImages : public ComputeTest {};
INSTANTIATE_TEST_SUITE_P(On, ComputeImages, kComputes, compute_name);

// Channels that can and cannot go four at once, images smaller than the patch, the cnn's own shapes (few images).
constexpr ImageShape kShapes[] = {{1, 1, 1, 1}, {2, 5, 7, 3}, {3, 4, 2, 4}, {1, 28, 28, 1}, {2, 14, 14, 32}};
constexpr ImageShape kEvenShapes[] = {{1, 2, 2, 1}, {2, 4, 6, 3}, {3, 2, 8, 4}, {2, 28, 28, 5}, {1, 14, 14, 32}};

size_t element(const ImageShape& s, size_t image, size_t y, size_t x, size_t channel) {
  return ((image * s.height + y) * s.width + x) * s.channels + channel;
}

/// For every entry of the columns, in order: the image element it comes from, or −1.
std::vector<long> patch_sources(const ImageShape& s, size_t kernel) {
  std::vector<long> sources;
  const long border = static_cast<long>(kernel / 2);
  for (size_t image = 0; image < s.count; ++image) {
    for (size_t pixel = 0; pixel < s.height * s.width; ++pixel) {
      for (size_t k = 0; k < kernel * kernel; ++k) {
        const long y = static_cast<long>(pixel / s.width + k / kernel) - border;
        const long x = static_cast<long>(pixel % s.width + k % kernel) - border;
        const bool inside = y >= 0 && x >= 0 && y < static_cast<long>(s.height) && x < static_cast<long>(s.width);
        for (size_t c = 0; c < s.channels; ++c) {
          sources.push_back(
              inside ? static_cast<long>(element(s, image, static_cast<size_t>(y), static_cast<size_t>(x), c)) : -1);
        }
      }
    }
  }
  return sources;
}

TEST_P(ComputeImages, PatchesAndBack) {
  for (const ImageShape& shape : kShapes) {
    for (const size_t kernel : {1, 3, 5}) {
      for (const size_t offset : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << shape.height << "x" << shape.width << "x" << shape.channels << " kernel "
                                          << kernel << " offset " << offset);
        const std::vector<long> sources = patch_sources(shape, kernel);
        const std::vector<float> images = bed().normal(shape.elements());
        std::vector<double> expected(sources.size());
        for (size_t i = 0; i < sources.size(); ++i) {
          expected[i] = sources[i] < 0 ? 0.0 : images[static_cast<size_t>(sources[i])];
        }
        const auto device_images = bed().make(images, offset);
        const auto columns = bed().poisoned<float>(sources.size(), 4 * offset);
        compute().im2col(shape, kernel, device_images.data(), columns.data());
        expect_near(bed().read(columns), expected, 0.0);

        const std::vector<float> entries = bed().normal(sources.size());
        std::vector<double> back(shape.elements());
        for (size_t i = 0; i < sources.size(); ++i) {
          if (sources[i] >= 0) back[static_cast<size_t>(sources[i])] += entries[i];
        }
        const auto device_entries = bed().make(entries, offset);
        const auto target = bed().poisoned<float>(shape.elements(), 4 * offset);
        compute().col2im(shape, kernel, device_entries.data(), target.data());
        expect_near(bed().read(target), back, 1e-5);
      }
    }
  }
}

/// The four elements of a window, and which of them is the first of the largest (NaN larger than any number).
std::pair<std::array<size_t, 4>, size_t> window(const ImageShape& s, const std::vector<float>& images, size_t image,
                                                size_t y, size_t x, size_t c) {
  const std::array<size_t, 4> elements = {element(s, image, 2 * y, 2 * x, c), element(s, image, 2 * y, 2 * x + 1, c),
                                          element(s, image, 2 * y + 1, 2 * x, c),
                                          element(s, image, 2 * y + 1, 2 * x + 1, c)};
  size_t best = elements[0];
  for (const size_t candidate : elements) {
    if (std::isnan(images[best])) break;
    if (std::isnan(images[candidate]) || images[candidate] > images[best]) best = candidate;
  }
  return {elements, best};
}

void check_pool(Bed& bed, const ImageShape& shape, const std::vector<float>& images, size_t offset) {
  const std::vector<float> pooled_gradient = bed.normal(images.size() / 4);
  std::vector<double> pooled, gradient(images.size());
  for (size_t image = 0; image < shape.count; ++image) {
    for (size_t y = 0; y < shape.height / 2; ++y) {
      for (size_t x = 0; x < shape.width / 2; ++x) {
        for (size_t c = 0; c < shape.channels; ++c) {
          const size_t best = window(shape, images, image, y, x, c).second;
          gradient[best] = pooled_gradient[pooled.size()];
          pooled.push_back(images[best]);
        }
      }
    }
  }
  const auto device_images = bed.make(images, offset);
  const auto device_pooled = bed.poisoned<float>(pooled.size(), 4 * offset);
  bed.compute().max_pool(shape, device_images.data(), device_pooled.data());
  expect_near(bed.read(device_pooled), pooled, 0.0);
  const auto device_pooled_gradient = bed.make(pooled_gradient, offset);
  const auto device_gradient = bed.poisoned<float>(images.size(), 4 * offset);
  bed.compute().max_pool_backward(shape, device_images.data(), device_pooled_gradient.data(), device_gradient.data());
  expect_near(bed.read(device_gradient), gradient, 0.0);
}

TEST_P(ComputeImages, PoolsAndBack) {
  for (const ImageShape& shape : kEvenShapes) {
    for (const size_t offset : {0, 1}) check_pool(bed(), shape, bed().normal(shape.elements()), offset);
  }
}

TEST_P(ComputeImages, OfEqualsTheFirstGetsTheGradientAndNaNShows) {
  for (const ImageShape& shape : kEvenShapes) {
    std::vector<float> images(shape.elements());
    // Few values: windows full of ties, as ReLU leaves them.
    for (float& value : images) value = static_cast<float>(bed().random().below(3));
    check_pool(bed(), shape, images, 0);
    for (float& value : images) value = bed().random().below(4) == 0 ? std::nanf("") : value;
    check_pool(bed(), shape, images, 0);
  }
}

}  // namespace
}  // namespace gradrail::gpu
