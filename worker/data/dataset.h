#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/sparse.h"

namespace gradrail::worker {

/// The images of a split, which a task keeps in memory. MNIST has 47 MB.
inline constexpr uint64_t kMaxImageBytes = uint64_t{4} << 30;

/// An IDX file, plain or packed (packed_file.h), uint8 elements.
struct IdxArray {
  std::vector<uint32_t> shape;
  std::vector<uint8_t> values;
};

/// Errors  Those of PackedFile. DATA_LOSS names the file and the damage: another format or type, a wrong size, or
///         dimensions with an overflow. Never allocates more than the file can fill, and at most kMaxImageBytes.
absl::StatusOr<IdxArray> read_idx(const std::string& path);

/// The shape of the images, as the data set states it; all 0: it states nothing.
struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  int64_t depth = 0;

  bool operator==(const ImageSize&) const = default;
};

/// Images and labels of one split. images: [count, pixels] uint8, labels: [count] in 0 … 9.
struct Split {
  size_t count = 0;
  size_t pixels = 0;
  std::vector<uint8_t> images;
  std::vector<uint8_t> labels;
  bool in_file_order = false;  ///< order of TFRecord files: shuffled through a buffer, as in TensorFlow
  ImageSize size = {};
};

struct MnistData {
  Split train;       ///< 55,000: the 60,000 without the first 5,000
  Split validation;  ///< validation images: those 5,000
  Split test;        ///< 10,000
};

/// Reads the four files with the names of MNIST from a folder: `train-images-idx3-ubyte` …, or
/// `train-images.idx3-ubyte` …, each with or without `.gz`.
/// Data sets of other sizes are accepted. The validation split is the first twelfth of the training images.
/// Errors  Those of read_idx(). DATA_LOSS: counts or labels contradict each other; the message names both files.
absl::StatusOr<MnistData> load_mnist(const std::string& folder);

/// The folder with the built-in MNIST: $GRADRAIL_DATA_DIR, beside the program, or below share/ of its prefix.
absl::StatusOr<std::string> default_mnist_folder();

/// Batches of one split. Each epoch has its own random order, a function of (seed, stream, epoch). The last, smaller
/// batch of an epoch is left out, as the tutorials do. A loader makes them in one form; the order is the same in all. A
/// split in file order is shuffled through a buffer of 1000 + 3 · batch examples: each is drawn from the next ones.
/// Threads  One owner.
class BatchLoader {
 public:
  enum class Form {
    kDense,    ///< pixels/255
    kCentred,  ///< pixels/255 - 0.5
    kSparse,   ///< pixels/255 without the black ones
  };
  /// Towers take their batches from one queue in turn: batches of one tower's size, of which this one takes those
  /// number index, index + count, …. `count` batches together are one batch of a single tower.
  struct Turn {
    size_t index = 0;
    size_t count = 1;
  };

  /// The sparse form reads the split once, here; it takes what fits_sparse(). The split must hold one batch for every
  /// tower.
  BatchLoader(const Split& split, size_t batch_size, uint64_t seed, uint64_t stream, Form form = Form::kDense)
      : BatchLoader(split, batch_size, seed, stream, form, Turn{}) {}
  BatchLoader(const Split& split, size_t batch_size, uint64_t seed, uint64_t stream, Form form, Turn turn);
  // No copy: its sparse lists refer to each other.
  BatchLoader(BatchLoader&& other) noexcept = default;
  BatchLoader& operator=(BatchLoader&& other) = delete;

  size_t batches_per_epoch() const { return split_->count / (batch_size_ * turn_.count); }

  /// The next batch is number `step`, counted from 0 over all epochs.
  void seek(uint64_t step);
  /// Prepares the next batch now, so that next() finds it ready: called while an exchange is under way.
  void prefetch();

  struct Batch {
    absl::Span<const float> images;    ///< [batch, pixels]
    absl::Span<const uint8_t> labels;  ///< [batch]
  };
  /// The next batch; valid until the call after the next prefetch() or next().
  Batch next();
  /// Memory of the images of all batches, which are consecutive: for a copy to a device.
  absl::Span<const float> image_memory() const { return images_; }
  /// next() of a sparse loader; a loader answers to the one of its form only.
  SparseBatch next_sparse();

 private:
  /// Begins the epoch `epoch_` with a separate order.
  void shuffle();
  /// Makes the batch of `step_` the one in use, if it has not been prepared.
  void advance();
  /// Writes the batch of `step_` into the half that is not in use, and makes that half the one in use.
  void fill();
  absl::Span<const uint8_t> labels_in_use() const {
    return absl::MakeConstSpan(labels_).subspan(half_ * batch_size_, batch_size_);
  }

  const Split* split_;
  size_t batch_size_;
  uint64_t seed_;
  uint64_t stream_;
  Form form_;
  Turn turn_;
  uint64_t epoch_ = 0;  ///< epoch of order_
  uint64_t step_ = 0;   ///< step of the next batch
  bool ready_ = false;  ///< the next batch has been prepared
  std::vector<uint32_t> order_;
  // Two halves in turn: a prefetched batch must not overwrite the one in use.
  size_t half_ = 0;
  std::vector<float> images_;       // dense, centred
  std::vector<SparseLists> lists_;  // sparse only
  std::vector<uint8_t> labels_;
  std::optional<SparseImages> sparse_images_;  // sparse only
};

}  // namespace gradrail::worker
