#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/client/session/control_link.h"

namespace gradrail::worker {

/// A worker's saves, one at a time: all ps tasks copy what they hold, then write it while steps continue. A thread asks
/// each how that went, and once all have written has the first one remove older sets.
/// Threads  Owner thread.
class CheckpointSave {
 public:
  /// The links outlive this.
  explicit CheckpointSave(const std::vector<std::unique_ptr<ControlLink>>& controls) : controls_(controls) {}
  /// Ends the requests; the tasks complete their files.
  ~CheckpointSave();

  /// Returns when every shard has its copy. In sync mode, called between two steps, they are of one step.
  /// Errors  FAILED_PRECONDITION: the one before is under way, or a task cannot save (says why). UNAVAILABLE.
  absl::Status begin(const ps::proto::Member& member);
  bool under_way() const;
  /// Waits for the last one: its files, once; none when there was none.
  /// Errors  names task, file and cause.
  absl::StatusOr<std::vector<std::string>> finish();

 private:
  absl::Status watch(ps::proto::CheckpointOutcomeRequest request) const;

  const std::vector<std::unique_ptr<ControlLink>>& controls_;
  std::vector<std::string> files_;
  std::atomic<bool> abandoned_ = false;
  std::future<absl::Status> outcome_;  ///< last: its thread uses the rest
};

}  // namespace gradrail::worker
