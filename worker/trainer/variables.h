#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradrail/schema.h"

namespace gradrail::worker {

/// The variables of a run, as a trainer uses them: at parameter servers (ClientVariables) or in this process
/// (LocalVariables). gradrail/client.h has the longer comments.
/// Threads  One owner.
class Variables {
 public:
  virtual ~Variables() = default;

  virtual const Schema& schema() const = 0;
  virtual absl::Span<float> parameters(size_t tensor_index) = 0;
  virtual absl::Span<float> gradients(size_t tensor_index) = 0;

  /// Starts the steps; called once, when the chief has written the initial values.
  virtual absl::Status start() = 0;

  /// A step: ready() for each gradient that is complete (optional), exchange(), wait() for the fresh parameters.
  virtual void ready(size_t tensor_index) = 0;
  virtual void exchange() = 0;
  virtual absl::Status wait() = 0;
  /// Called between two calls of ready(), while a device computes: continues the transfers under way.
  virtual void progress() {}
  virtual uint64_t global_step() const = 0;
  /// Steps of the run that this worker has completed, which decides its next batch; Client::position().
  virtual uint64_t position() const = 0;
  /// Whether this worker saves checkpoints and prints the final lines; may become true during the run.
  virtual bool is_chief() const { return true; }

  /// The other workers no longer wait for steps of this one. No step is under way.
  virtual absl::Status finish_steps() = 0;
  /// Waits for all workers, then fetches the parameters after their last update, for the chief's last report.
  virtual absl::Status pull_final() = 0;
  /// Fetches the parameters of this moment.
  virtual absl::Status pull() = 0;

  /// Copies the parameters from the device to parameters(); has no effect without a device.
  virtual absl::Status fetch() { return absl::OkStatus(); }

  /// Whether the device that holds the model has failed. Call it after an error of wait().
  virtual bool device_failed() const { return false; }

  /// Whether checkpoints are saved; else the next four are not called. They are those of gradrail::Checkpoints.
  virtual bool saves_checkpoints() const { return false; }
  virtual absl::Status begin_checkpoint() { return absl::OkStatus(); }
  virtual bool checkpoint_under_way() const { return false; }
  virtual absl::StatusOr<std::vector<std::string>> finish_checkpoint() { return std::vector<std::string>(); }
  virtual absl::StatusOr<std::vector<std::string>> save_checkpoint() { return std::vector<std::string>(); }

  /// Lines about the paths of the gradients.
  virtual std::vector<std::string> summary(bool verbose) const = 0;
  virtual absl::Status leave() = 0;
  /// Client::leave_unless_last(): false for the last worker, which has not left.
  virtual absl::StatusOr<bool> leave_unless_last() = 0;
  /// Replaces leave() when this worker cannot continue.
  virtual absl::Status give_up(const std::string& why) = 0;
};

}  // namespace gradrail::worker
