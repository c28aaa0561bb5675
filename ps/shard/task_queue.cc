#include "ps/shard/task_queue.h"

#include <utility>

#include "base/check.h"

namespace gradrail::ps {

bool TaskQueue::push(std::function<void()> task) {
  GRADRAIL_CHECK(task != nullptr);  // an empty function throws in the shard's thread
  const MutexLock lock(mutex_);
  if (stopped_) return false;
  tasks_.push_back(std::move(task));
  // The lock is held: run() clears the flag under it, so that no task remains behind a clear flag.
  has_work_.store(true, std::memory_order_release);
  return true;
}

void TaskQueue::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  has_work_.store(true, std::memory_order_release);
}

bool TaskQueue::run() {
  std::vector<std::function<void()>> tasks;
  bool stopped = false;
  {
    const MutexLock lock(mutex_);
    tasks.swap(tasks_);
    stopped = stopped_;
    has_work_.store(false, std::memory_order_relaxed);
  }
  // The lock is not held: a task may take as long as an update, and push() must not wait for it.
  for (const std::function<void()>& task : tasks) task();
  return !stopped;  // no task can arrive after stop()
}

}  // namespace gradrail::ps
