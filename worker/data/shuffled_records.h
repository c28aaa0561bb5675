#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/random.h"
#include "worker/data/record_sequence.h"

namespace gradrail::worker {

/// Examples of the buffer through which a split in file order is shuffled.
size_t shuffle_buffer(size_t batch_size);

/// The generator of an epoch's order. Each epoch has its own, so that its order does not depend on the epochs before.
Random epoch_random(uint64_t seed, uint64_t stream, uint64_t epoch);

/// The images of a split in the order of BatchLoader, with the images of the shuffle buffer in memory and no others.
/// Errors  Those of RecordSequence. CANCELLED: `stop` became true.
/// Threads  One owner; `stop`: any.
class ShuffledRecords {
 public:
  struct Order {
    uint64_t seed = 0;
    uint64_t stream = 0;
    size_t buffer = 1;
  };
  ShuffledRecords(const RecordFiles& files, const Order& order, const std::atomic<bool>& stop);

  /// The next image is number `position` of the order of `epoch`. A jump reads the shards from the first one with an
  /// image that is still needed.
  absl::Status seek(uint64_t epoch, uint64_t position);
  /// Writes the next image of the epoch, which must not be at its end.
  absl::Status next(uint8_t* pixels, uint8_t& label);

 private:
  size_t draw();
  absl::Status jump(uint64_t epoch, uint64_t position);
  absl::Status load(size_t slot);
  absl::Status refill(size_t slot);

  const uint64_t count_;
  const size_t pixels_;
  const Order order_;
  const size_t buffer_;  ///< no more than there are images
  const std::atomic<bool>& stop_;
  RecordSequence sequence_;

  uint64_t epoch_ = 0;
  uint64_t position_ = 0;         ///< position of the next image in the epoch
  std::optional<Random> random_;  ///< empty: no epoch has begun, or an error ended it
  std::vector<size_t> ring_;      ///< [position % buffer]: the slot of the image there
  std::vector<uint8_t> images_;   ///< [slot, pixels]
  std::vector<uint8_t> labels_;   ///< [slot]
};

}  // namespace gradrail::worker
