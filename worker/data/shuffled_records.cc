#include "worker/data/shuffled_records.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace gradrail::worker {
namespace {

// min_after_dequeue, and capacity beyond it, of the tutorials' tf.train.shuffle_batch.
constexpr size_t kBufferExamples = 1000;
constexpr size_t kBufferBatches = 3;

}  // namespace

size_t shuffle_buffer(size_t batch_size) { return kBufferExamples + kBufferBatches * batch_size; }

Random epoch_random(uint64_t seed, uint64_t stream, uint64_t epoch) {
  // The pair (seed, stream) has a separate generator, since neighboring seeds of one generator share part of their
  // state.
  return Random(Random(seed, stream).next(), epoch);
}

ShuffledRecords::ShuffledRecords(const RecordFiles& files, const Order& order, const std::atomic<bool>& stop)
    : count_(files.count()),
      pixels_(files.pixels),
      order_(order),
      buffer_(static_cast<size_t>(std::min<uint64_t>(order.buffer, count_))),
      stop_(stop),
      sequence_(files),
      ring_(buffer_),
      images_(buffer_ * pixels_),
      labels_(buffer_) {}

/// Returns the slot of the image at `position_`. The image that was there replaces the drawn one. A list of all images
/// has the same order, if each place is swapped with one of the next `buffer_` places.
size_t ShuffledRecords::draw() {
  GRADRAIL_CHECK(position_ < count_);
  const uint64_t distance = random_->below(std::min<uint64_t>(buffer_, count_ - position_));
  size_t& here = ring_[position_ % buffer_];
  std::swap(here, ring_[(position_ + distance) % buffer_]);
  ++position_;
  return here;
}

absl::Status ShuffledRecords::load(size_t slot) {
  if (stop_.load(std::memory_order_relaxed)) return absl::CancelledError("the run ends");
  GRADRAIL_ASSIGN_OR_RETURN(const std::optional<RecordSequence::Image> image, sequence_.next());
  // The sequence compares each file with the counts: it cannot end before.
  GRADRAIL_CHECK(image.has_value());
  std::memcpy(images_.data() + slot * pixels_, image->pixels.data(), pixels_);
  labels_[slot] = image->label;
  return absl::OkStatus();
}

/// Fills the slot of a drawn image with the next one of the files.
absl::Status ShuffledRecords::refill(size_t slot) {
  if (position_ + buffer_ > count_) return absl::OkStatus();
  const absl::Status loaded = load(slot);
  if (!loaded.ok()) random_.reset();
  return loaded;
}

absl::Status ShuffledRecords::next(uint8_t* pixels, uint8_t& label) {
  const size_t slot = draw();
  std::memcpy(pixels, images_.data() + slot * pixels_, pixels_);
  label = labels_[slot];
  return refill(slot);
}

absl::Status ShuffledRecords::seek(uint64_t epoch, uint64_t position) {
  const bool is_near = random_ && epoch == epoch_ && position >= position_ && position - position_ <= buffer_;
  if (!is_near) return jump(epoch, position);
  while (position_ < position) GRADRAIL_RETURN_IF_ERROR(refill(draw()));
  return absl::OkStatus();
}

absl::Status ShuffledRecords::jump(uint64_t epoch, uint64_t position) {
  epoch_ = epoch;
  position_ = 0;
  random_ = epoch_random(order_.seed, order_.stream, epoch);
  std::iota(ring_.begin(), ring_.end(), size_t{0});
  // The draws need no images: they decide which records the buffer holds at `position`.
  std::vector<std::pair<uint64_t, size_t>> held(buffer_);  // record and slot
  for (size_t slot = 0; slot < buffer_; ++slot) held[slot] = {slot, slot};
  while (position_ < position) {
    const size_t slot = draw();
    held[slot].first = position_ - 1 + buffer_;
  }
  std::sort(held.begin(), held.end());
  const uint64_t end = std::min(position + buffer_, count_);  // end of the records in the buffer
  uint64_t record = held.front().first;
  absl::Status loaded = sequence_.seek(record);
  for (auto next = held.begin(); loaded.ok() && record < end; ++record) {
    if (stop_.load(std::memory_order_relaxed)) {
      loaded = absl::CancelledError("the run ends");
    } else if (next != held.end() && next->first == record) {
      loaded = load(next->second);
      ++next;
    } else {
      loaded = sequence_.skip();
    }
  }
  if (!loaded.ok()) random_.reset();
  return loaded;
}

}  // namespace gradrail::worker
