#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "gradrail/clock.h"

namespace gradrail {

// Locks that clang's -Wthread-safety checks: a field marked ABSL_GUARDED_BY(mutex_) compiles only where mutex_ is held.
// They wrap the standard library's: Debian's Abseil is built without ThreadSanitizer, which therefore reports a data
// race at each access that an absl::Mutex protects.

/// std::mutex with annotations.
class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a Mutex until its scope ends; unlock() and lock() may interrupt that.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {}  // NOLINT(modernize-use-equals-default): the annotation needs a body
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { lock_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

/// Callers loop over their condition, because a predicate in a lambda hides the lock from the analysis.
class ConditionVariable {
 public:
  void notify_all() { changed_.notify_all(); }
  void wait(MutexLock& lock) { changed_.wait(lock.lock_); }
  /// False when `deadline` has passed.
  bool wait_until(MutexLock& lock, TimePoint deadline) {
    return changed_.wait_until(lock.lock_, deadline) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace gradrail
