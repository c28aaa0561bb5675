#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace gradrail::ps {

/// Tasks that other threads hand to the shard's thread. They run in the order of push().
/// Threads  push(), stop(): any thread. The rest: owner thread.
class TaskQueue {
 public:
  /// False after stop(): the task will not run.
  [[nodiscard]] bool push(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  /// No task is accepted from now on. Those in the queue still run.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

  /// True when run() may have something to do. One load: the event loop asks on each turn.
  bool has_work() const { return has_work_.load(std::memory_order_acquire); }
  /// Runs the tasks in the queue. Returns false when the queue is stopped and empty.
  bool run() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_work_ = false;  ///< any thread; set under mutex_
};

}  // namespace gradrail::ps
