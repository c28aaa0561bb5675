#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/rate_limited_log.h"
#include "gradrail/cluster.h"
#include "ps/control/control_context.h"

namespace gradrail::ps {

class BackupHandler;
class Replication;
class StatsHandler;
namespace proto {
class HeartbeatReply;
class Ping;
}  // namespace proto

/// Detects losses: answers the pings of members, and declares a silent member lost. A member is also lost when a shard
/// or this class has detected the end of its link. A step then no longer waits for it.
class HeartbeatHandler {
 public:
  HeartbeatHandler(ControlContext& context, Replication& replication, BackupHandler& backup, const StatsHandler& stats)
      : context_(context), replication_(replication), backup_(backup), stats_(stats) {}

  /// Threads  Any thread.
  /// Errors   Those of Membership::heard(). UNAVAILABLE: the backup serves instead.
  absl::Status on_ping(const proto::Ping& ping, proto::HeartbeatReply& reply);
  /// The stream of a member has ended. Without Leave before, this is a loss. `next_ping_us`: of the last reply, or 0.
  void on_stream_end(const Membership::Member& member, uint32_t next_ping_us);
  /// Threads  Any thread without ControlState::mutex.
  void declare_lost(const LossQueue::Loss& loss);

  /// Handles reported losses, silence and expired limits. Waits up to `timeout` for a report.
  /// Threads  The main thread of the task, which calls this in a loop.
  void housekeep(Duration timeout);
  /// Logs NaN and infinity that a shard has reported. housekeep() calls it as well.
  /// Threads  As housekeep().
  void declare_non_finite();

  /// The run is over, or this task is the backup of one that is over.
  bool finished();
  /// Names of the live workers.
  std::vector<std::string> workers();
  /// Workers of the specification that have never joined and, without a live member, those that may return. None for a
  /// backup, which they join only after a loss.
  std::vector<std::string> awaited();

 private:
  ControlContext& context_;
  Replication& replication_;
  BackupHandler& backup_;
  const StatsHandler& stats_;
  RateLimitedLog losses_{std::chrono::seconds(10), kMaxWorkers};  ///< a host or a switch with many workers can fail
  /// A run with the optimizer `mean` may have NaN and continue: GradScaler of PyTorch does so.
  RateLimitedLog non_finite_{std::chrono::minutes(1)};
  TimePoint housekept_ = Clock::now();  ///< main thread: begin of the last housekeep()
  TimePoint look_at_;                   ///< main thread: the next look for silent members
};

}  // namespace gradrail::ps
