#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "worker/data/record_sequence.h"
#include "worker/data/shuffled_records.h"
#include "worker/data/sparse.h"

namespace gradrail::worker {

/// A batch with the contents of its files.
struct RecordBatch {
  std::vector<uint8_t> images;         ///< [batch, pixels]
  std::vector<uint8_t> labels;         ///< [batch]
  std::optional<SparseImages> sparse;  ///< sparse form of `images`, if the queue makes it
};

/// The batches of one worker, which a thread reads ahead of the steps. Batches are counted from 0 over all epochs; the
/// towers of a worker take those of one step.
/// Errors  Those of RecordSequence, in the order of the batches.
/// Threads  Any.
class RecordQueue {
 public:
  struct Options {
    uint64_t seed = 0;
    uint64_t stream = 0;
    size_t batch_size = 1;
    size_t tower_count = 1;
    bool sparse = false;

    bool operator==(const Options&) const = default;
  };
  /// Starts the thread that reads; it calls `on_thread` first.
  RecordQueue(const RecordFiles& files, const Options& options, std::function<void()> on_thread);
  ~RecordQueue();

  const Options& options() const { return options_; }
  /// Whether take() would return immediately.
  bool is_ready(uint64_t number);
  /// Waits for a batch and exchanges its memory with that of `batch`. Any order is correct; batches that are not near
  /// the one before cost a search in the files.
  absl::Status take(uint64_t number, RecordBatch& batch);

 private:
  void run();
  absl::Status read(uint64_t number, RecordBatch& batch);

  const size_t pixels_;
  const Options options_;
  const uint64_t batches_per_epoch_;  ///< number of all towers together
  const std::function<void()> on_thread_;
  std::atomic<bool> stop_ = false;
  ShuffledRecords records_;  ///< used by the thread

  // Held during take(): towers with distant batches must not send the thread back and forth while they wait.
  Mutex turn_ ABSL_ACQUIRED_BEFORE(mutex_);
  Mutex mutex_;
  ConditionVariable changed_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;    ///< batch that the thread reads now, or next
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;     ///< the thread reads no further
  bool jumped_ ABSL_GUARDED_BY(mutex_) = false;  ///< next_ was set while the thread may read another batch
  std::map<uint64_t, RecordBatch> ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<RecordBatch> spare_ ABSL_GUARDED_BY(mutex_);  ///< memory for the next batches
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);            ///< error of batch `next_`

  absl::Status thread_failure_;  ///< set once: there is no thread

  std::thread thread_;  ///< last: it uses the rest
};

/// The files of a training split that is too large for memory.
/// Threads  Any, after set_on_thread().
class RecordSource {
 public:
  explicit RecordSource(RecordFiles files) : files_(std::move(files)) {}

  void set_on_thread(std::function<void()> on_thread) { on_thread_ = std::move(on_thread); }
  /// The queue with these options. The towers of a worker share one.
  std::shared_ptr<RecordQueue> open(const RecordQueue::Options& options);

 private:
  const RecordFiles files_;
  std::function<void()> on_thread_;
  Mutex mutex_;
  std::weak_ptr<RecordQueue> shared_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradrail::worker
