#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "worker/data/dataset.h"
#include "worker/data/pixels.h"
#include "worker/data/record_queue.h"
#include "worker/data/shuffled_records.h"

namespace gradrail::worker {

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
  } else {
    images_.resize(2 * batch_size * split.pixels);
  }
  if (split.source != nullptr) {
    taken_.resize(2);
    queue_ = split.source->open({.seed = seed,
                                 .stream = stream,
                                 .batch_size = batch_size,
                                 .tower_count = turn.count,
                                 .sparse = form == Form::kSparse});
    return;
  }
  if (form == Form::kSparse) sparse_images_.emplace(split.images, split.pixels);
  order_.resize(split.count);
  shuffle();
}

BatchLoader::BatchLoader(BatchLoader&& other) noexcept = default;
BatchLoader::~BatchLoader() = default;

void BatchLoader::seek(uint64_t step) {
  if (step == step_) return;
  step_ = step;
  if (ready_) half_ = 1 - half_;  // overwrites the prepared half, not the one in use
  ready_ = false;
}

void BatchLoader::prefetch() {
  if (ready_ || (queue_ != nullptr && !queue_->is_ready(number()))) return;
  // An error ends the run in next(), which finds it again.
  ready_ = fill().ok();
}

absl::Status BatchLoader::advance() {
  if (!ready_) GRADRAIL_RETURN_IF_ERROR(fill());
  ready_ = false;
  ++step_;
  return absl::OkStatus();
}

absl::StatusOr<BatchLoader::Batch> BatchLoader::next() {
  GRADRAIL_CHECK(form_ != Form::kSparse);
  GRADRAIL_RETURN_IF_ERROR(advance());
  const size_t image_values = batch_size_ * split_->pixels;
  return Batch{.images = absl::MakeConstSpan(images_).subspan(half_ * image_values, image_values),
               .labels = labels_in_use()};
}

absl::StatusOr<SparseBatch> BatchLoader::next_sparse() {
  GRADRAIL_CHECK(form_ == Form::kSparse);
  GRADRAIL_RETURN_IF_ERROR(advance());
  return lists_[half_].batch(labels_in_use());
}

void BatchLoader::shuffle() {
  // The order starts from the identity each time, so that an epoch's order does not depend on the epochs before it.
  std::iota(order_.begin(), order_.end(), 0u);
  Random random = epoch_random(seed_, stream_, epoch_);
  if (split_->in_file_order) {
    // Each example is one of the next `buffer` of the file, as in the tutorials' queue, not of the whole split.
    const size_t buffer = shuffle_buffer(batch_size_);
    for (size_t i = 0; i < order_.size(); ++i) {
      std::swap(order_[i], order_[i + random.below(std::min(buffer, order_.size() - i))]);
    }
  } else {
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  }
}

absl::Status BatchLoader::fill() {
  const size_t half = 1 - half_;
  if (queue_ != nullptr) {
    GRADRAIL_RETURN_IF_ERROR(fill_from_files(half));
  } else {
    fill_from_memory(half);
  }
  if (form_ == Form::kSparse) lists_[half].transpose();
  half_ = half;
  return absl::OkStatus();
}

void BatchLoader::fill_from_memory(size_t half) {
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
}

absl::Status BatchLoader::fill_from_files(size_t half) {
  RecordBatch& taken = taken_[half];
  GRADRAIL_RETURN_IF_ERROR(queue_->take(number(), taken));
  std::copy(taken.labels.begin(), taken.labels.end(),
            labels_.begin() + static_cast<std::ptrdiff_t>(half * batch_size_));
  if (taken.sparse) {
    for (size_t i = 0; i < batch_size_; ++i) lists_[half].set_image(i, (*taken.sparse)[i]);
  } else {
    const auto convert = form_ == Form::kCentred ? centre_pixels : scale_pixels;
    convert(taken.images.data(), taken.images.size(), images_.data() + half * taken.images.size());
  }
  return absl::OkStatus();
}

}  // namespace gradrail::worker
