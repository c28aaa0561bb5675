#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "worker/data/dataset.h"
#include "worker/data/pixels.h"

namespace gradrail::worker {
namespace {

// min_after_dequeue, and capacity beyond it, of the tutorials' tf.train.shuffle_batch.
constexpr size_t kBufferExamples = 1000;
constexpr size_t kBufferBatches = 3;

/// The generator of an epoch's order. Each epoch has its own, so that its order does not depend on the epochs before.
Random epoch_random(uint64_t seed, uint64_t stream, uint64_t epoch) {
  // The pair (seed, stream) has a separate generator, since neighboring seeds of one generator share part of their
  // state.
  return Random(Random(seed, stream).next(), epoch);
}

}  // namespace

BatchLoader::BatchLoader(const Split& split, size_t batch_size, uint64_t seed, uint64_t stream, Form form, Turn turn)
    : split_(&split),
      batch_size_(batch_size),
      seed_(seed),
      stream_(stream),
      form_(form),
      turn_(turn),
      // Two halves: a step reads one batch while prefetch() fills the other.
      labels_(2 * batch_size) {
  GRADRAIL_CHECK(turn.index < turn.count);
  GRADRAIL_CHECK(batch_size > 0 && batch_size <= split.count / turn.count);
  if (form == Form::kSparse) {
    GRADRAIL_CHECK(fits_sparse(batch_size, split.pixels));
    lists_.assign(2, SparseLists(batch_size, split.pixels));
    sparse_images_.emplace(split.images, split.pixels);
  } else {
    images_.resize(2 * batch_size * split.pixels);
  }
  order_.resize(split.count);
  shuffle();
}

void BatchLoader::seek(uint64_t step) {
  if (step == step_) return;
  step_ = step;
  if (ready_) half_ = 1 - half_;  // overwrites the prepared half, not the one in use
  ready_ = false;
}

void BatchLoader::prefetch() {
  if (!ready_) fill();
  ready_ = true;
}

void BatchLoader::advance() {
  prefetch();
  ready_ = false;
  ++step_;
}

BatchLoader::Batch BatchLoader::next() {
  GRADRAIL_CHECK(form_ != Form::kSparse);
  advance();
  const size_t image_values = batch_size_ * split_->pixels;
  return {.images = absl::MakeConstSpan(images_).subspan(half_ * image_values, image_values),
          .labels = labels_in_use()};
}

SparseBatch BatchLoader::next_sparse() {
  GRADRAIL_CHECK(form_ == Form::kSparse);
  advance();
  return lists_[half_].batch(labels_in_use());
}

void BatchLoader::shuffle() {
  // The order starts from the identity each time, so that an epoch's order does not depend on the epochs before it.
  std::iota(order_.begin(), order_.end(), 0u);
  Random random = epoch_random(seed_, stream_, epoch_);
  if (split_->in_file_order) {
    // Each example is one of the next `buffer` of the file, as in the tutorials' queue, not of the whole split.
    const size_t buffer = kBufferExamples + kBufferBatches * batch_size_;
    for (size_t i = 0; i < order_.size(); ++i) {
      std::swap(order_[i], order_[i + random.below(std::min(buffer, order_.size() - i))]);
    }
  } else {
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  }
}

void BatchLoader::fill() {
  const size_t half = 1 - half_;
  const uint64_t epoch = step_ / batches_per_epoch();
  if (epoch != epoch_) {
    epoch_ = epoch;
    shuffle();
  }
  // Towers share one order and take its batches in turn: those of one step are one batch of the worker.
  const size_t batch = step_ % batches_per_epoch() * turn_.count + turn_.index;
  const absl::Span<const uint32_t> examples = absl::MakeConstSpan(order_).subspan(batch * batch_size_, batch_size_);
  // prefetch() may run while a step still reads its labels: they have halves, too.
  uint8_t* label = labels_.data() + half * batch_size_;
  float* image = images_.data() + half * batch_size_ * split_->pixels;
  const auto convert = form_ == Form::kCentred ? centre_pixels : scale_pixels;
  for (size_t i = 0; i < batch_size_; ++i) {
    label[i] = split_->labels[examples[i]];
    if (sparse_images_) {
      lists_[half].set_image(i, (*sparse_images_)[examples[i]]);
    } else {
      convert(split_->images.data() + examples[i] * split_->pixels, split_->pixels, image + i * split_->pixels);
    }
  }
  if (form_ == Form::kSparse) lists_[half].transpose();
  half_ = half;
}

}  // namespace gradrail::worker
