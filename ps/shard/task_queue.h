#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/out_of_memory.h"
#include "fmt/format.h"
#include "gradrail/clock.h"

namespace gradrail::ps {

/// Tasks from other threads for the shard's thread. They run in the order of push().
/// Threads  push(), run_and_wait(), stop(): any thread. The rest: owner thread.
class TaskQueue {
 public:
  /// False after stop(): the task will not run.
  [[nodiscard]] bool push(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Queues a task, calls `wake`, and waits for the result of the task. `owner` begins the texts of errors.
  /// Errors  UNAVAILABLE: after stop(). DEADLINE_EXCEEDED: the task has not ended within `limit`; it may still run.
  ///         RESOURCE_EXHAUSTED: the task had no memory.
  template <typename Task, typename Wake>
  auto run_and_wait(const std::string& owner, Duration limit, Wake wake, Task task)
      -> absl::StatusOr<decltype(task())> {
    // shared: the task may still run after the timeout of this function.
    auto promise = std::make_shared<std::promise<decltype(task())>>();
    std::future<decltype(task())> result = promise->get_future();
    if (!push([promise, task = std::move(task)] {
          try {
            promise->set_value(task());
          } catch (...) {  // the shard continues without this task
            promise->set_exception(std::current_exception());
          }
        }))
      return absl::UnavailableError(fmt::format("{} is stopping", owner));
    wake();
    if (result.wait_for(limit) != std::future_status::ready)
      return absl::DeadlineExceededError(fmt::format("{} does not answer", owner));
    using Result = absl::StatusOr<decltype(task())>;
    return without_exceptions(owner, [&result]() -> Result { return result.get(); });
  }
  /// No task is accepted from now on. Those in the queue still run.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

  /// Whether run() may have something to do. It is one load: the event loop calls it on each turn.
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
