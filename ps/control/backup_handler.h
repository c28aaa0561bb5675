#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ps/control/control_context.h"
#include "ps/control/run_setup.h"

namespace gradrail::ps {

class Replication;
namespace proto {
class JoinRequest;
class ReplicateReply;
class ReplicateRequest;
}  // namespace proto

/// The backup's side of replication: receives the state of the primary, and takes over when the first worker that has
/// lost the primary joins here.
/// Threads  Any thread.
class BackupHandler {
 public:
  BackupHandler(ControlContext& context, RunSetup& setup, Replication& replication)
      : context_(context), setup_(setup), replication_(replication) {}

  /// Errors  FAILED_PRECONDITION: the two tasks were started with different options. UNAVAILABLE: this task serves.
  absl::Status mirror(const proto::ReplicateRequest& request, proto::ReplicateReply& reply)
      ABSL_LOCKS_EXCLUDED(setup_.mutex);

  /// Makes this task the primary if the request allows it. `setup` is the one that the caller has locked.
  /// Errors  UNAVAILABLE: the primary serves. FAILED_PRECONDITION: a worker has received parameters that this task
  ///         lacks.
  absl::Status take_over(const proto::JoinRequest& request, RunSetup& setup) ABSL_EXCLUSIVE_LOCKS_REQUIRED(setup.mutex);
  /// Makes this task the primary if its primary was lost before it began a run: no state is missing here then. Called
  /// for a worker that has not joined and cannot reach the primary.
  void begin_without_primary() ABSL_LOCKS_EXCLUDED(setup_.mutex);
  /// Repeats the effects of calls that the worker has made at the former primary.
  void resume(const proto::JoinRequest& request);

  /// Returns why the run of a lost primary cannot continue here; "" if it can, or if the primary is not lost.
  std::string why_run_is_lost();

 private:
  absl::Status check_options(const proto::ReplicateRequest& request) const;
  bool waits_for_workers(const proto::ReplicateRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(setup_.mutex);
  absl::Status accept(const proto::ReplicateRequest& request, proto::ReplicateReply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(setup_.mutex);
  absl::Status follow_agreement(const proto::ReplicateRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(setup_.mutex);
  absl::Status check_versions(const proto::JoinRequest& request, const RunAgreement& agreement,
                              bool is_primary_unreachable) const;

  ControlContext& context_;
  RunSetup& setup_;
  Replication& replication_;
  std::atomic_flag said_no_peer_;
};

}  // namespace gradrail::ps
