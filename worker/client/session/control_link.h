#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "gradrail/clock.h"
#include "worker/client/session/clock_comparison.h"
#include "worker/client/session/heartbeats.h"

namespace grpc {
class Status;
}

namespace gradrail {
struct Security;
}

namespace gradrail::ps {
class ControlDialer;
}

namespace gradrail::ps::proto {
class BarrierReply;
class BarrierRequest;
class CheckpointOutcomeReply;
class CheckpointOutcomeRequest;
class CheckpointReply;
class CheckpointRequest;
class DescribeReply;
class DescribeRequest;
class JoinReply;
class JoinRequest;
class LeaveReply;
class LeaveRequest;
class Member;
class HeartbeatReply;
class Ping;
class StatsReply;
class TraceReply;
class TraceRequest;
}  // namespace gradrail::ps::proto

namespace gradrail::worker {

/// Receives texts for people: the missing peers of a wait, first after a second, then every 10 s.
using LogSink = std::function<void(const std::string&)>;
/// The current address of a ps task.
/// Errors  NOT_FOUND, UNAVAILABLE: not known yet, and why. Others are final.
using AddressResolver = std::function<absl::StatusOr<std::string>()>;
/// Whether a wait must end. Called in the owner thread.
using StopRequest = std::function<bool()>;

/// Opens the connections of control links over gRPC. `worker_count` is that of the cluster description: a ps that was
/// stopped is noticed later in a large run.
/// Errors  Those of ps::channel_credentials().
absl::StatusOr<std::shared_ptr<ps::ControlDialer>> control_link_dialer(const Security& security, size_t worker_count);

/// A worker's side of the control plane towards one ps task. This header shows no gRPC: tools include it.
/// Threads  Owner thread, unless stated otherwise; a heartbeat runs in the thread of Heartbeats.
class ControlLink {
 public:
  /// `stop` may be empty. A true result ends describe() (CANCELLED) and the attempts of join().
  /// `resolver`, unless empty, is called before each attempt of describe(): the task may have started on another host.
  ControlLink(uint32_t ps_index, std::string address, std::shared_ptr<ps::ControlDialer> dialer, LogSink log,
              StopRequest stop, AddressResolver resolver = nullptr);
  ~ControlLink();

  /// "parameter server 0 (10.0.0.1:2222)"
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }

  /// Waits for the task to start, and reports the wait. DEADLINE_EXCEEDED.
  absl::StatusOr<ps::proto::DescribeReply> describe(const ps::proto::DescribeRequest& request, TimePoint deadline);
  /// Identity of the task's checkpoint folder, known after describe(); "" when the task has none.
  const std::string& checkpoint_folder() const { return checkpoint_folder_; }
  /// Joins the task. Repeats the call while the task still counts an earlier incarnation of this worker as a member, or
  /// is part of another group of parameter servers.
  absl::StatusOr<ps::proto::JoinReply> join(const ps::proto::JoinRequest& request, TimePoint deadline);
  /// Runs one round of the barrier, which may be complete or not.
  absl::StatusOr<ps::proto::BarrierReply> barrier(const ps::proto::BarrierRequest& request);
  /// `dump`: also requests the contents of all flight recorders.
  absl::StatusOr<ps::proto::StatsReply> stats(bool dump = false);
  /// The same without describe() before, for a monitor that does not join.
  absl::StatusOr<ps::proto::StatsReply> stats_for_a_watcher(bool dump);
  absl::StatusOr<ps::proto::TraceReply> trace(const ps::proto::TraceRequest& request);
  absl::StatusOr<ps::proto::CheckpointReply> checkpoint(const ps::proto::CheckpointRequest& request);
  /// Threads  Any thread.
  absl::StatusOr<ps::proto::CheckpointOutcomeReply> checkpoint_outcome(
      const ps::proto::CheckpointOutcomeRequest& request);
  /// Ends the membership. `failed`: the reason why this worker cannot continue; the ps then counts the worker as lost.
  /// "": its work is complete.
  absl::Status leave(const ps::proto::Member& member, const std::string& failed);
  /// False: no other worker is a member, and this one still is.
  absl::StatusOr<bool> leave_unless_last(const ps::proto::Member& member);
  /// Reports that this worker pushes no further gradients; it stays a member.
  absl::Status finish_steps(const ps::proto::Member& member);
  /// Leaves for a moment, to join again with a lost ps. Waits a second at most: this task may be lost itself.
  void leave_to_return(const ps::proto::Member& member);
  /// Whether the ps has removed this worker, and why (ABORTED), after a data connection ended. OK: it gave no reason.
  absl::Status why_removed(const ps::proto::Member& member);

  /// Sets the function that adds this worker's report to each ping; the heartbeat's thread calls it. Before
  /// start_heartbeat().
  void fill_pings(std::function<void(ps::proto::Ping&)> fill) { fill_ = std::move(fill); }
  /// Offset of the task's clock from ours.
  /// Threads  Any thread.
  ClockOffset clock_offset() const ABSL_LOCKS_EXCLUDED(mutex_);

  /// Pings until stop_heartbeat(). `failed` is called once, when the ps is lost (UNAVAILABLE) or reports that the run
  /// is over (ABORTED); `heard` is called for each reply. Both are called from the heartbeats' thread. `heartbeats`
  /// stays until stop_heartbeat().
  void start_heartbeat(Heartbeats& heartbeats, const ps::proto::Member& member,
                       std::function<void(absl::Status)> failed,
                       std::function<void(const ps::proto::HeartbeatReply&)> heard);
  void stop_heartbeat();

 private:
  struct Rpc;   ///< the connection
  struct Beat;  ///< the heartbeat

  absl::StatusOr<ps::proto::LeaveReply> send_leave(const ps::proto::LeaveRequest& request, Duration timeout);
  /// A turn of the heartbeat: takes the answer to the last ping, or sends the next ping. Returns the time of the next.
  TimePoint beat() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status take_answer(Beat& beat) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Opens a connection and drops the former one.
  absl::Status open();
  grpc::Status look_up();
  absl::Status explain(const grpc::Status& status) const;
  absl::Status explain_membership(const grpc::Status& status) const;

  const uint32_t ps_index_;
  const std::shared_ptr<ps::ControlDialer> dialer_;
  const LogSink log_;
  const StopRequest stop_;
  const AddressResolver resolver_;
  std::string address_;  ///< constant after describe() has succeeded, as is name_
  std::string name_;
  std::unique_ptr<Rpc> rpc_;
  std::string checkpoint_folder_;

  std::function<void(ps::proto::Ping&)> fill_;  ///< set before the heartbeat starts

  mutable Mutex mutex_;
  ClockComparison clocks_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Beat> beat_;  ///< last: its answers use the others
};

/// Checks that all ps tasks have the same checkpoint folder: a set is complete in one folder only.
/// Errors  FAILED_PRECONDITION: names two tasks that differ.
absl::Status check_one_checkpoint_folder(absl::Span<const std::unique_ptr<ControlLink>> controls);

}  // namespace gradrail::worker
