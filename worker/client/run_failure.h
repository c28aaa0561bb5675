#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"

namespace gradrail::worker {

/// Marks the error that a ps has declared this worker lost by silence: the run continues, and the worker may join it.
absl::Status returnable(absl::Status cause);
bool is_returnable(const absl::Status& cause);
/// Whether a ps was lost, or a connection to it. The loss of this worker's GPU has the same code, and is none.
bool is_server_loss(const absl::Status& cause);
/// Whether a backup or another join may remedy the error: is_server_loss(), or a returnable() error.
bool may_be_remedied(const absl::Status& cause);

/// The first error of a run, and the lost ps tasks. The loss of a ps that has a backup is not a final error: the
/// failover removes this loss again.
///
/// Invariants
///   1. failed() is true exactly when an error or a lost ps task has been recorded and not taken out.
///   2. While a failover is under way, a further lost ps task is recorded for it and does not fail the run.
/// Threads  Any thread, unless stated otherwise.
class RunFailure {
 public:
  using LostServers = std::map<uint32_t, absl::Status>;  ///< causes of the losses, by ps task

  /// `wake` makes the owner thread return from a blocking wait; it is called from any thread.
  RunFailure(bool has_backups, std::function<void()> wake) : has_backups_(has_backups), wake_(std::move(wake)) {}

  /// Records the error that ends the run; only the first one counts.
  void fail(absl::Status cause) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Records a lost ps task. A cause other than is_server_loss() is the task's decision, and no backup changes it.
  void lose_server(uint32_t ps_index, absl::Status cause) ABSL_LOCKS_EXCLUDED(mutex_);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether the ps task was lost since take_lost_servers().
  bool has_lost_server(uint32_t ps_index) const ABSL_LOCKS_EXCLUDED(mutex_);

  /// Begins or continues a failover: takes the lost ps tasks out, and with them the error that they caused. An empty
  /// answer ends the failover.
  /// Threads  Owner thread.
  LostServers take_lost_servers() ABSL_LOCKS_EXCLUDED(mutex_);
  /// Ends a failover that did not succeed, before its cause is recorded by fail().
  /// Threads  Owner thread.
  void abandon_failover() ABSL_LOCKS_EXCLUDED(mutex_);

  /// Removes all errors before this worker joins again.
  /// Threads  Owner thread, without heartbeats.
  void clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const bool has_backups_;
  const std::function<void()> wake_;
  std::atomic<bool> failed_ = false;  ///< written under mutex_; read without it on the hot path
  mutable Mutex mutex_;
  absl::Status first_ ABSL_GUARDED_BY(mutex_);
  bool failing_over_ ABSL_GUARDED_BY(mutex_) = false;
  LostServers lost_servers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradrail::worker
