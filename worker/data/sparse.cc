#include "worker/data/sparse.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace gradrail::worker {

namespace {

size_t count_values(absl::Span<const uint8_t> images) {
  return images.size() - static_cast<size_t>(std::count(images.begin(), images.end(), uint8_t{0}));
}

}  // namespace

double density(absl::Span<const uint8_t> images) {
  return static_cast<double>(count_values(images)) / static_cast<double>(images.size());
}

bool fits_sparse(size_t batch_size, size_t pixels) {
  constexpr size_t kRows = size_t{std::numeric_limits<uint16_t>::max()} + 1;
  // Lists of a batch count its values in 32 bits.
  return pixels <= kRows && batch_size <= kRows && pixels * batch_size <= std::numeric_limits<uint32_t>::max();
}

SparseImages::SparseImages(absl::Span<const uint8_t> images, size_t pixels) {
  GRADRAIL_CHECK(pixels > 0 && images.size() % pixels == 0 && fits_sparse(1, pixels));
  // Counted first: growing step by step would need up to three times the room for a moment.
  const size_t count = count_values(images);
  values_.resize(count + 1);  // the last black pixels are written behind the values
  offsets_.reserve(images.size() / pixels + 1);
  offsets_.push_back(0);
  size_t next = 0;
  constexpr size_t kWord = sizeof(uint64_t);
  for (size_t first = 0; first < images.size(); first += pixels) {
    const uint8_t* const image = images.data() + first;
    for (size_t begin = 0; begin < pixels; begin += kWord) {
      // Black pixels form runs.
      uint64_t word = 0;
      std::memcpy(&word, image + begin, std::min(kWord, pixels - begin));
      if (word == 0) continue;
      for (size_t pixel = begin; pixel < std::min(begin + kWord, pixels); ++pixel) {
        values_[next] = {pixel, image[pixel]};
        next += image[pixel] != 0 ? 1 : 0;  // no branch: those at the edges of a digit would be mispredicted
      }
    }
    offsets_.push_back(next);
  }
  values_.pop_back();
}

void SparseLists::set_image(size_t index, SparseValues values) {
  // Shuffled images are anywhere in memory: a fetch of all together costs one wait, not one each.
  constexpr size_t kPerLine = 64 / sizeof(SparseValue);
  for (size_t k = 0; k < values.size(); k += kPerLine) __builtin_prefetch(values.data() + k);
  by_image_[index] = values;
}

void SparseLists::transpose() {
  std::fill(ends_.begin(), ends_.end(), 0);
  size_t count = 0;
  for (const SparseValues& image : by_image_) {
    // A counting sort. Images are added in order, so each list is sorted by image, as accumulate_rows() needs it.
    for (const SparseValue& value : image) ++ends_[value.row()];
    count += image.size();
  }
  // The allocation precedes the spans below, which point into `values_`. It never shrinks: later batches rarely
  // allocate.
  if (values_.size() < count) values_.resize(count);
  uint32_t begin = 0;
  for (size_t pixel = 0; pixel < ends_.size(); ++pixel) {
    by_pixel_[pixel] = {values_.data() + begin, ends_[pixel]};
    // The entry is the place of the pixel's next value from here on.
    begin += std::exchange(ends_[pixel], begin);
  }
  for (size_t i = 0; i < by_image_.size(); ++i) {
    for (const SparseValue& value : by_image_[i]) values_[ends_[value.row()]++] = {i, value.value()};
  }
}

}  // namespace gradrail::worker
