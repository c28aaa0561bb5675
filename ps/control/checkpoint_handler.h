#pragma once

#include <atomic>
#include <optional>

#include "absl/status/status.h"
#include "ps/checkpoint/writer.h"
#include "ps/control/control_context.h"
#include "ps/control/run_setup.h"

namespace gradrail::ps {

namespace proto {
class CheckpointOutcomeReply;
class CheckpointOutcomeRequest;
class CheckpointReply;
class CheckpointRequest;
}  // namespace proto

/// Saves checkpoints: copies the parameters between two updates, and writes the files while training continues.
/// Threads  Any thread.
class CheckpointHandler {
 public:
  CheckpointHandler(ControlContext& context, RunSetup& setup)
      : context_(context), setup_(setup), writer_(context.options.checkpoint_dir) {}

  /// Returns when every shard has copied its parameters.
  /// Errors  FAILED_PRECONDITION: no folder. ALREADY_EXISTS: the last save is still being written. UNAVAILABLE: all ps
  ///         tasks are about to restart from a checkpoint. Also those of Membership::heard().
  absl::Status save(const proto::CheckpointRequest& request, proto::CheckpointReply& reply);
  /// Returns when the files of a save are written, or after the timeout of the request.
  /// Errors  Those of CheckpointWriter::outcome() and Membership::heard().
  absl::Status outcome(const proto::CheckpointOutcomeRequest& request, proto::CheckpointOutcomeReply& reply);

  /// Age of the last checkpoint that this task has written; none: it has written none.
  std::optional<double> age_s() const;

 private:
  absl::Status save_at_parent(proto::CheckpointReply& reply);
  absl::Status outcome_at_parent(const proto::CheckpointOutcomeRequest& request, proto::CheckpointOutcomeReply& reply);
  void log_kept(const SavedSet& completed, std::optional<uint64_t> finite_step);

  ControlContext& context_;
  RunSetup& setup_;
  CheckpointWriter writer_;
  std::atomic<uint64_t> kept_step_ = UINT64_MAX;  ///< step of the last line of log_kept()
  std::atomic<Duration::rep> saved_at_ = 0;       ///< time of Clock; 0: nothing was saved
};

}  // namespace gradrail::ps
