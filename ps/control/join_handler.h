#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/rate_limited_log.h"
#include "ps/control/control_context.h"
#include "ps/control/run_setup.h"

namespace gradrail::ps {

class BackupHandler;
class HeartbeatHandler;
class Replication;
class StatsHandler;
namespace proto {
class DescribeReply;
class DescribeRequest;
class JoinReply;
class JoinRequest;
class LeaveReply;
class LeaveRequest;
}  // namespace proto

/// Makes workers members of the run, and lets them leave.
/// Threads  Any thread.
class JoinHandler {
 public:
  JoinHandler(ControlContext& context, RunSetup& setup, Replication& replication, BackupHandler& backup,
              HeartbeatHandler& heartbeat, const StatsHandler& stats)
      : context_(context),
        setup_(setup),
        replication_(replication),
        backup_(backup),
        heartbeat_(heartbeat),
        stats_(stats) {}

  /// The facts that a worker needs before it joins.
  /// Errors  FAILED_PRECONDITION: another protocol version, or the run has ended.
  absl::Status describe(const proto::DescribeRequest& request, proto::DescribeReply& reply);
  /// Errors  Those of RunAgreement::agree(), BackupHandler::take_over() and Membership::join(). FAILED_PRECONDITION:
  ///         the run has ended. UNAVAILABLE: this task does not serve, or is another process than the worker has
  ///         described.
  absl::Status join(const proto::JoinRequest& request, proto::JoinReply& reply);
  /// Ends the steps, the membership or the worker, according to the request.
  absl::Status leave(const proto::LeaveRequest& request, proto::LeaveReply& reply);

 private:
  absl::Status try_join(const proto::JoinRequest& request, proto::JoinReply& reply);
  absl::Status add_left_steps(const proto::JoinRequest& request, proto::JoinReply& reply) const;
  absl::StatusOr<std::string> admit(const proto::JoinRequest& request);
  absl::Status fill(proto::JoinReply& reply, const RunAgreement& agreement);
  void log_refusal(const proto::JoinRequest& request, const absl::Status& why);

  ControlContext& context_;
  RunSetup& setup_;
  Replication& replication_;
  BackupHandler& backup_;
  HeartbeatHandler& heartbeat_;
  const StatsHandler& stats_;
  RateLimitedLog rate_limited_log_;
  std::atomic<uint64_t> refused_incarnation_ = 0;  ///< incarnation of the join that was refused last
};

}  // namespace gradrail::ps
