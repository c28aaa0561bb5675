#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "worker/data/dataset.h"
#include "worker/data/pixels.h"

namespace gradrail::worker {
namespace {

// min_after_dequeue, and capacity beyond it, of the tutorials' tf.train.shuffle_batch.
constexpr size_t kBufferExamples = 1000;
constexpr size_t kBufferBatches = 3;

}  // namespace

BatchLoader::BatchLoader(const Split& split, size_t batch_size, uint64_t seed, uint64_t stream, Form form, Turn turn)
    : split_(&split),
      batch_size_(batch_size),
      seed_(seed),
      stream_(stream),
      form_(form),
      turn_(turn),
      order_(split.count),
      // Two halves: a step reads one batch while prefetch() fills the other.
      labels_(2 * batch_size) {
  GRADRAIL_CHECK(turn.index < turn.count);
  GRADRAIL_CHECK(batch_size > 0 && batch_size <= split.count / turn.count);
  if (form == Form::kSparse) {
    GRADRAIL_CHECK(fits_sparse(batch_size, split.pixels));
    sparse_images_.emplace(split.images, split.pixels);
    lists_.assign(2, SparseLists(batch_size, split.pixels));
  } else {
    images_.resize(2 * batch_size * split.pixels);
  }
  shuffle();
}

void BatchLoader::seek(uint64_t step) {
  if (step == step_) return;
  step_ = step;
  if (ready_) half_ = 1 - half_;  // what was prepared is written over, not what is in use
  ready_ = false;
}

void BatchLoader::prefetch() {
  if (ready_) return;
  fill();
  ready_ = true;
}

BatchLoader::Batch BatchLoader::next() {
  GRADRAIL_CHECK(!sparse_images_);
  prefetch();
  ready_ = false;
  ++step_;
  const size_t image_values = batch_size_ * split_->pixels;
  return {.images = absl::MakeConstSpan(images_).subspan(half_ * image_values, image_values),
          .labels = labels_in_use()};
}

SparseBatch BatchLoader::next_sparse() {
  GRADRAIL_CHECK(sparse_images_.has_value());
  prefetch();
  ready_ = false;
  ++step_;
  return lists_[half_].batch(labels_in_use());
}

void BatchLoader::shuffle() {
  // From the identity each time, so that an epoch's order does not depend on the epochs before it. A generator of its
  // own for the pair (seed, stream), since neighboring seeds of one generator share part of their state.
  std::iota(order_.begin(), order_.end(), 0u);
  Random random(Random(seed_, stream_).next(), epoch_);
  if (split_->in_file_order) {
    // Each example comes from the next `buffer` of the file, as from the tutorials' queue, not from the whole split.
    const size_t buffer = kBufferExamples + kBufferBatches * batch_size_;
    for (size_t i = 0; i < order_.size(); ++i) {
      std::swap(order_[i], order_[i + random.below(std::min(buffer, order_.size() - i))]);
    }
  } else {
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  }
}

void BatchLoader::fill() {
  const uint64_t epoch = step_ / batches_per_epoch();
  if (epoch != epoch_) {
    epoch_ = epoch;
    shuffle();
  }
  half_ = 1 - half_;
  // Towers share one order and take its batches in turn: those of one step are one batch of the worker.
  const size_t batch = step_ % batches_per_epoch() * turn_.count + turn_.index;
  const absl::Span<const uint32_t> examples = absl::MakeConstSpan(order_).subspan(batch * batch_size_, batch_size_);
  uint8_t* label = labels_.data() + half_ * batch_size_;
  // prefetch() may run while a step still reads its labels: they have halves, too.
  for (const uint32_t example : examples) *label++ = split_->labels[example];
  if (sparse_images_) {
    fill_lists(examples);
  } else {
    fill_images(examples);
  }
}

void BatchLoader::fill_images(absl::Span<const uint32_t> examples) {
  float* image = images_.data() + half_ * batch_size_ * split_->pixels;
  const auto convert = form_ == Form::kCentred ? centre_pixels : scale_pixels;
  for (const uint32_t example : examples) {
    convert(split_->images.data() + example * split_->pixels, split_->pixels, image);
    image += split_->pixels;
  }
}

void BatchLoader::fill_lists(absl::Span<const uint32_t> examples) {
  SparseLists& lists = lists_[half_];
  for (size_t i = 0; i < batch_size_; ++i) lists.set_image(i, (*sparse_images_)[examples[i]]);
  lists.transpose();
}

}  // namespace gradrail::worker
