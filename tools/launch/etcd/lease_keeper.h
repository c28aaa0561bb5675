#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "tools/launch/etcd/etcd.h"
#include "tools/launch/etcd/roster.h"

namespace gradrail::tools {

/// A killed task's place is free after so long; etcd may be away for longer without an effect on the run.
constexpr int64_t kLeaseSeconds = 5;

/// Keeps what a task says of itself in etcd as long as the task runs, whatever happens to etcd in between. Takes it
/// away when the task ends.
/// Threads  Any; keeping is done by a thread of its own.
class LeaseKeeper {
 public:
  /// `lease`: under which `card` is registered at `key`.
  LeaseKeeper(std::unique_ptr<Etcd> etcd, std::string key, int64_t lease, TaskRecord card);
  ~LeaseKeeper();

  /// Says something else from now on: at once, or as soon as etcd is back.
  void publish_address(const std::string& address);

 private:
  void run();
  absl::Status beat(const TaskRecord& card);
  absl::Status keep_lease();
  void tell(const absl::Status& status);

  // Set once.
  const std::unique_ptr<Etcd> etcd_;
  const std::string key_;

  // The thread's.
  int64_t lease_;  ///< 0: none
  std::string trouble_;

  Mutex mutex_;
  ConditionVariable changed_;
  TaskRecord card_ ABSL_GUARDED_BY(mutex_);
  bool is_new_ ABSL_GUARDED_BY(mutex_) = false;  ///< the thread has not read card_ yet
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gradrail::tools
