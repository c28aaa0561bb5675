#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/client/session/control_link.h"

namespace gradrail::worker {

/// A worker's saves, one at a time: all ps tasks copy their state, then write it while steps continue. A thread waits
/// for the result of each task, and once all have written it has the first one remove older sets.
/// Threads  Owner thread.
class CheckpointSave {
 public:
  /// The links outlive this.
  explicit CheckpointSave(const std::vector<std::unique_ptr<ControlLink>>& controls) : controls_(controls) {}
  /// Ends the requests; the tasks complete their files.
  ~CheckpointSave();

  /// Returns when every shard has its copy. A call between two steps in sync mode yields copies of one step.
  /// Errors  FAILED_PRECONDITION: the previous save is under way, or a task cannot save (with the reason). UNAVAILABLE.
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
