#pragma once

#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "ps/checkpoint.h"
#include "ps/checkpoint_folder.h"

namespace gradrail::ps {

/// Writes a ps task's snapshots while training goes on, in a thread of its own, one save at a time.
/// Threads  Any thread.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string folder) : folder_(std::move(folder)) {}
  /// What is being written is written to its end.
  ~CheckpointWriter() = default;

  /// Memory of the last save, to take the next snapshots into: the shards stand still while they copy, and pages that
  /// are there already take half the time. Nothing while a save is being written.
  std::optional<std::vector<Checkpoint>> take_memory();

  /// Starts to write, after take_memory(); returns the names.
  std::vector<std::string> write(const SavedSet& set, std::vector<Checkpoint> snapshots);

  /// How the save went; nothing when it is not written within `patience`.
  /// Errors  those of write_checkpoint(). NOT_FOUND: the save begun last is another one.
  std::optional<absl::Status> outcome(const SavedSet& set, Duration patience);

 private:
  absl::Status write_all(const std::vector<Checkpoint>& snapshots) const;
  std::string path(const Checkpoint& snapshot) const;

  const std::string folder_;
  std::mutex mutex_;
  std::vector<Checkpoint> memory_;            ///< under mutex_
  SavedSet last_;                             ///< under mutex_
  std::shared_future<absl::Status> writing_;  ///< under mutex_; ends last: its thread uses the rest
};

}  // namespace gradrail::ps
