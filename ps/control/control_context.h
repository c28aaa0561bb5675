#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "ps/control/membership.h"
#include "ps/control/shard_set.h"
#include "ps/control/worker_reports.h"
#include "ps/protocol/training.h"
#include "ps/server_options.h"

namespace gradrail::ps {

namespace proto {
class JoinRequest;
class Member;
}  // namespace proto

Membership::Member to_member(const proto::Member& message);

/// The agreement of the run in the form that the heartbeat and the backup need. RunAgreement publishes it.
struct PublishedRun {
  uint64_t generation = 0;  ///< number of times that the shards were set up; 0: not yet
  /// Request that the shards were set up by. Shared, because the thread of the backup's link copies it without a lock.
  std::shared_ptr<const proto::JoinRequest> agreed;
  int64_t run_base = 0;
  uint64_t run = 0;  ///< JoinReply.run
  BeganFrom began_from;
};

/// State of the primary in the view of its backup. It decides whether the run is lost.
struct PrimaryStatus {
  TimePoint heard;       ///< time of the last message; TimePoint(): none yet
  bool is_over = false;  ///< the primary's run has ended
};

/// State that the handlers of one ps task share, with its lock.
/// Threads  `mutex` is never held during a call to a shard, because the shard's thread may be reporting a loss.
struct ControlState {
  explicit ControlState(Membership::Options options) : membership(std::move(options)) {}

  /// Calls Membership::heard() with the current time.
  absl::Status heard(const Membership::Member& member) ABSL_LOCKS_EXCLUDED(mutex);
  std::string aborted() ABSL_LOCKS_EXCLUDED(mutex);

  Mutex mutex;
  ConditionVariable changed;  ///< a barrier may be complete, or the run may be aborted
  Membership membership ABSL_GUARDED_BY(mutex);
  WorkerReports reports ABSL_GUARDED_BY(mutex);
  PublishedRun run ABSL_GUARDED_BY(mutex);
  PrimaryStatus primary ABSL_GUARDED_BY(mutex);
  std::string non_finite ABSL_GUARDED_BY(mutex);  ///< short_text() of the last NonFinite; "": none
};

/// Losses, and NaN and infinity, on their way from the shards' threads to the main thread, which declares them.
/// Threads  Any thread. Never blocks on anything but its own mutex: a shard must not wait for the control plane.
class LossQueue {
 public:
  struct Loss {
    Membership::Member member;
    std::string cause;
    bool may_return = false;  ///< its network may return: the member may then join again
  };
  struct Content {
    std::deque<Loss> losses;
    std::string failure;  ///< reason why a shard cannot continue, which aborts the run; "": none
  };

  void report(Loss loss);
  /// The first failure counts.
  void report_failure(const std::string& cause);
  /// A shard has NaN or infinity in its parameters; it has none any more.
  void report_non_finite(const NonFinite& first);
  void report_finite();
  /// Takes the report of the shard that was the first one. NaN spreads, so that it is the cause of the others.
  std::optional<NonFinite> take_non_finite();
  /// Ends the wait() in progress, or the next one: the state that its caller looks at has changed.
  void wake();
  /// Takes the content; waits up to `timeout` while there is none.
  Content wait(Duration timeout);

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  Content content_ ABSL_GUARDED_BY(mutex_);
  std::optional<NonFinite> non_finite_ ABSL_GUARDED_BY(mutex_);
  uint32_t non_finite_shards_ ABSL_GUARDED_BY(mutex_) = 0;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  ///< set by wake() for the next wait()
};

/// Parts that all handlers of one ps task use. They are set once, except those with their own locks.
struct ControlContext {
  ControlContext(ServerOptions server_options, std::string folder, std::vector<std::unique_ptr<Shard>>& all_shards);

  const ServerOptions options;
  const std::string checkpoint_folder;  ///< identity of options.checkpoint_dir
  const ShardSet shards;
  ControlState state;
  LossQueue losses;
};

}  // namespace gradrail::ps
