#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "worker/data/dataset.h"
#include "worker/data/pixels.h"

namespace gradrail::worker {

BatchLoader::BatchLoader(const Split& split, size_t batch_size, uint64_t seed, uint64_t stream)
    : split_(&split),
      batch_size_(batch_size),
      seed_(seed),
      stream_(stream),
      order_(split.count),
      images_(2 * batch_size * split.pixels),
      labels_(2 * batch_size) {
  GRADRAIL_CHECK(batch_size > 0 && batch_size <= split.count);
  shuffle();
}

void BatchLoader::prefetch() {
  if (ready_) return;
  fill();
  ready_ = true;
}

BatchLoader::Batch BatchLoader::next() {
  prefetch();
  ready_ = false;
  const size_t image_values = batch_size_ * split_->pixels;
  return {.images = absl::MakeConstSpan(images_).subspan(half_ * image_values, image_values),
          .labels = absl::MakeConstSpan(labels_).subspan(half_ * batch_size_, batch_size_)};
}

void BatchLoader::shuffle() {
  // From the identity each time, so that an epoch's order does not depend on the epochs before it; a generator of its
  // own for the pair (seed, stream), since neighbouring seeds of one generator share part of their state.
  std::iota(order_.begin(), order_.end(), 0u);
  Random random(Random(seed_, stream_).next(), epoch_);
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
}

void BatchLoader::fill() {
  if (position_ + batch_size_ > split_->count) {
    position_ = 0;
    ++epoch_;
    shuffle();
  }
  half_ = 1 - half_;
  float* image = images_.data() + half_ * batch_size_ * split_->pixels;
  uint8_t* label = labels_.data() + half_ * batch_size_;
  for (size_t i = 0; i < batch_size_; ++i) {
    const size_t example = order_[position_++];
    scale_pixels(split_->images.data() + example * split_->pixels, split_->pixels, image);
    image += split_->pixels;
    *label++ = split_->labels[example];
  }
}

}  // namespace gradrail::worker
