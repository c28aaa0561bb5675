#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "launch/etcd/etcd.h"
#include "launch/etcd/roster.h"

namespace gradrail::launch {

/// The key of a killed task is free after this time. A longer outage of etcd has no effect on the run.
constexpr int64_t kLeaseSeconds = 5;

/// Keeps the record of a task in etcd while the task runs, also over restarts of etcd. The destructor removes it.
/// Threads  Any; a separate thread renews the lease.
class LeaseKeeper {
 public:
  /// `lease`: the lease of `key`, which holds `record`.
  LeaseKeeper(std::unique_ptr<Etcd> etcd, std::string key, int64_t lease, TaskRecord record);
  /// Once. Errors  RESOURCE_EXHAUSTED: the kernel refused a thread.
  absl::Status start();
  ~LeaseKeeper();

  /// Writes another address to the record: at once, or when etcd is reachable again.
  void publish_address(const std::string& address);

 private:
  void run();
  absl::Status renew(const TaskRecord& record);
  absl::Status keep_lease();
  void report(const absl::Status& status);

  // Set once.
  const std::unique_ptr<Etcd> etcd_;
  const std::string key_;

  // Owner: thread_.
  int64_t lease_;  ///< 0: none
  std::string trouble_;

  Mutex mutex_;
  ConditionVariable changed_;
  TaskRecord record_ ABSL_GUARDED_BY(mutex_);
  bool is_new_ ABSL_GUARDED_BY(mutex_) = false;  ///< the thread has not read record_ yet
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gradrail::launch
