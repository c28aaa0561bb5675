#pragma once

#include <cstdint>
#include <vector>

#include "ps/replication/backup_progress.h"
#include "ps/shard/shard_protocol.h"

namespace gradrail::ps {

/// Decides when the answer of a primary may leave. Pure: PrimaryRole calls it with the events of its backup, and
/// tests/ps/prove searches all orders of events. `progress` is that of the present backup; null: there is none.
///
/// Invariants
///   1. Answers leave immediately without a backup, and while it is filled.
///   2. After BackupProgress::is_holding() begins, no answer leaves that shows a state which the backup does not have.
///   3. When a level backup is lost, it may have taken over (is_unsure()). No answer leaves until the control plane
///      has detached the backup, or the backup has begun again with an empty state.
/// Threads  Owner thread of the shard.
class AnswerGate {
 public:
  /// Keeps the answer until the backup has its bucket. False: the answer may leave now.
  bool hold(const Action& answer, const BackupProgress* progress);
  /// The worker's connection is lost: it repeats what is unanswered.
  void forget(WorkerIndex worker);

  // Events of the backup. Each appends the answers that may leave now to `released`, in the order of their decisions.

  /// Prepares for the connection to another backup, or again to the same one. `former` is the progress of the former
  /// one.
  void on_attaching(const BackupProgress* former);
  void on_attached(size_t bucket_count) { held_.resize(bucket_count); }
  void on_acknowledged(uint32_t bucket, const BackupProgress& progress, Actions& released);
  /// The backup has sent a message, which may have changed its phase.
  void on_message(const BackupProgress& progress, Actions& released);
  void on_lost(Actions& released);
  /// The control plane has excluded that the backup has taken over.
  void on_detached(Actions& released);
  /// True once for each backup that becomes level. An unreported backup cannot have taken over.
  bool report_level(const BackupProgress& progress);
  /// Removes all held answers: the shard begins again.
  void reset();

  /// A level backup was lost, and may have taken over.
  bool is_unsure() const { return is_unsure_; }

 private:
  friend class StateReader;  // tests/ps/prove

  struct Held {
    Action answer;
    uint64_t change = 0;  ///< change of the bucket; the backup must have it
  };
  void release_all(Actions& released);

  std::vector<std::vector<Held>> held_;  ///< held answers of each bucket
  bool is_unsure_ = false;
  bool was_reported_level_ = false;
};

}  // namespace gradrail::ps
