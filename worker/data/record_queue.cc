#include "worker/data/record_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/resource_limits.h"
#include "base/status.h"

namespace gradrail::worker {
namespace {

// Steps that are read ahead: one while a step computes, and one more for the search at the begin of an epoch.
constexpr uint64_t kStepsAhead = 2;

}  // namespace

RecordQueue::RecordQueue(const RecordFiles& files, const Options& options, std::function<void()> on_thread)
    : pixels_(files.pixels),
      options_(options),
      batches_per_epoch_(files.count() / (options.batch_size * options.tower_count) * options.tower_count),
      on_thread_(std::move(on_thread)),
      records_(files, {.seed = options.seed, .stream = options.stream, .buffer = shuffle_buffer(options.batch_size)},
               stop_),
      end_(kStepsAhead * options.tower_count) {
  GRADRAIL_CHECK(batches_per_epoch_ > 0);
  absl::StatusOr<std::thread> started = start_thread("that reads records", [this] { run(); });
  if (started.ok()) thread_ = *std::move(started);
  const MutexLock lock(mutex_);
  if (!started.ok()) failure_ = thread_failure_ = started.status();
}

RecordQueue::~RecordQueue() {
  stop_.store(true);
  {
    const MutexLock lock(mutex_);  // the thread is either before its check of stop_, or waits
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool RecordQueue::is_ready(uint64_t number) {
  const MutexLock lock(mutex_);
  return ready_.contains(number) || (number == next_ && !failure_.ok());
}

absl::Status RecordQueue::take(uint64_t number, RecordBatch& batch) {
  const MutexLock turn(turn_);
  MutexLock lock(mutex_);
  const uint64_t towers = options_.tower_count;
  const uint64_t step = number / towers * towers;  // its first batch
  const uint64_t end = step + (1 + kStepsAhead) * towers;
  if (!ready_.contains(number) && (number < next_ || step > end_)) {
    jumped_ = true;
    next_ = step;
    end_ = end;
    failure_ = thread_failure_;
  }
  // A tower may be a step ahead of this one: its batches are read already.
  end_ = std::max(end_, end);
  // A tower may be one step behind this one. Other batches belong to steps that the worker has skipped.
  for (auto entry = ready_.begin(); entry != ready_.end();) {
    const bool stale = entry->first + towers < step || entry->first >= end_;
    if (stale) spare_.push_back(std::move(entry->second));
    entry = stale ? ready_.erase(entry) : std::next(entry);
  }
  changed_.notify_all();
  // A failure belongs to the batch `next_`; the thread reads nothing after it.
  while (!ready_.contains(number) && failure_.ok()) changed_.wait(lock);
  const auto found = ready_.find(number);
  if (found == ready_.end()) return failure_;
  std::swap(batch, found->second);
  spare_.push_back(std::move(found->second));
  ready_.erase(found);
  return absl::OkStatus();
}

void RecordQueue::run() {
  if (on_thread_) on_thread_();
  MutexLock lock(mutex_);
  while (true) {
    while (!stop_.load() && (next_ >= end_ || !failure_.ok())) changed_.wait(lock);
    if (stop_.load()) return;
    jumped_ = false;
    const uint64_t number = next_;
    RecordBatch batch;
    if (!spare_.empty()) {
      batch = std::move(spare_.back());
      spare_.pop_back();
    }
    lock.unlock();
    const absl::Status status = read(number, batch);
    lock.lock();
    if (jumped_) {  // a step elsewhere was requested meanwhile
      spare_.push_back(std::move(batch));
      continue;
    }
    if (status.ok()) {
      ready_.insert_or_assign(number, std::move(batch));
      ++next_;
    } else {
      failure_ = status;
    }
    changed_.notify_all();
  }
}

absl::Status RecordQueue::read(uint64_t number, RecordBatch& batch) {
  batch.images.resize(options_.batch_size * pixels_);
  batch.labels.resize(options_.batch_size);
  GRADRAIL_RETURN_IF_ERROR(
      records_.seek(number / batches_per_epoch_, number % batches_per_epoch_ * options_.batch_size));
  for (size_t i = 0; i < options_.batch_size; ++i)
    GRADRAIL_RETURN_IF_ERROR(records_.next(batch.images.data() + i * pixels_, batch.labels[i]));
  // This thread makes the form: a step would wait for it.
  if (options_.sparse) batch.sparse.emplace(batch.images, pixels_);
  return absl::OkStatus();
}

std::shared_ptr<RecordQueue> RecordSource::open(const RecordQueue::Options& options) {
  const MutexLock lock(mutex_);
  std::shared_ptr<RecordQueue> queue = options.tower_count > 1 ? shared_.lock() : nullptr;
  if (queue != nullptr && queue->options() == options) return queue;
  queue = std::make_shared<RecordQueue>(files_, options, on_thread_);
  shared_ = queue;
  return queue;
}

}  // namespace gradrail::worker
